import pytest
import torch

from lbq.errors import LoweringError, NonFiniteError, ShapeError, TimeError
from lbq.graph.graph import LoweredNetwork
from lbq.graph.operators import Merge, Readout, Shortcut


@pytest.fixture
def network():
    made = LoweredNetwork(timesteps=2, input_shape=(3,), takes_frames=True)
    once = made.add("block.0.twice", Shortcut(torch.tensor([2.0]), max_input=None), "input")
    same = made.add("block.0.twice", Shortcut(torch.tensor([3.0]), max_input=None), "input")
    made.add("block.merge", Merge(), once, same)
    made.add("readout", Readout("mean"), "block.merge")
    return made


def test_nodes_lie_at_their_paths(network):
    assert [place.path for place, _ in network.nodes()] == [
        "block.0.twice", "block.0.twice_2", "block.merge", "readout",
    ]  # fmt: skip
    assert network.get_submodule("block.0.twice_2").weight.item() == 3


def test_it_runs_in_the_order_of_its_plan(network):
    frames = torch.arange(6.0).reshape(2, 1, 3)
    assert torch.equal(network(frames), 5 * frames.mean(0))


def test_a_node_cannot_read_what_is_not_before_it(network):
    with pytest.raises(LoweringError, match="later"):
        network.add("early", Merge(), "later")


def test_an_example_fits(network):
    network.check_input(network.example(4))
    assert network.example(4).shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        (torch.zeros(2, 3), ShapeError),
        (torch.zeros(2, 1, 4), ShapeError),
        (torch.zeros(3, 1, 3), TimeError),  # S2: another T
        (torch.full((2, 1, 3), torch.nan), NonFiniteError),  # S3
    ],
)
def test_other_inputs_are_refused(network, inputs, error):
    with pytest.raises(error):
        network.check_input(inputs)


def test_an_integer_network_takes_bytes_only():
    made = LoweredNetwork(timesteps=1, input_shape=(3,), takes_frames=True, logit_scale=1.0)
    with pytest.raises(ShapeError, match="uint8"):
        made.check_input(torch.zeros(1, 1, 3))
