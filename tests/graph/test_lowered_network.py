from dataclasses import FrozenInstanceError

import pytest
import torch

from lbq.errors import LoweringError, NonFiniteError, ParameterError, ShapeError, TimeError
from lbq.graph import as_module
from lbq.graph.graph import GraphBuilder
from lbq.graph.operators import Merge, Readout, Shortcut
from lbq.neurons import watch_levels


@pytest.fixture
def graph():
    made = GraphBuilder(timesteps=2, input_shape=(3,), takes_frames=True)
    once = made.add("block.0.twice", Shortcut(torch.tensor([2.0]), max_input=None), "input")
    same = made.add("block.0.twice", Shortcut(torch.tensor([3.0]), max_input=None), "input")
    made.add("block.merge", Merge(), once, same)
    made.add("readout", Readout("mean"), "block.merge")
    return made


@pytest.fixture
def network(graph):
    return graph.finish()


def test_nodes_lie_at_their_paths(network):
    assert list(network.operators) == ["block.0.twice", "block.0.twice_2", "block.merge", "readout"]
    assert [node.path for node in network.nodes] == list(network.operators)
    assert network.operators["block.0.twice_2"].weight.item() == 3


def test_it_runs_in_the_order_of_its_plan(network):
    frames = torch.arange(6.0).reshape(2, 1, 3)
    assert torch.equal(network(frames), 5 * frames.mean(0))


def test_a_node_cannot_read_what_is_not_before_it(graph):
    with pytest.raises(LoweringError, match="later"):
        graph.add("early", Merge(), "later")


def test_a_graph_that_cannot_run_is_not_finished(graph):
    graph.add("again", Merge(), "readout", "block.merge")
    with pytest.raises(LoweringError, match="again: it reads shapes"):
        graph.finish()


def test_nothing_of_a_network_changes(network):
    with pytest.raises(FrozenInstanceError):
        network.timesteps = 3
    with pytest.raises(FrozenInstanceError):
        network.operators["block.0.twice"].has_time = False


def test_another_dtype_makes_another_network(network):
    frames = torch.randn(2, 1, 3, dtype=torch.float64)
    double = network.to(torch.float64)
    torch.testing.assert_close(double(frames), 5 * frames.mean(0), rtol=1e-12, atol=0)
    assert double.example().dtype == torch.float64
    assert network.example().dtype == torch.float32


def test_nodes_can_be_computed_otherwise(network):
    seen = []

    def compute(node, *values):
        seen.append(node.path)
        return node.compute(*values) + 1

    frames = torch.zeros(2, 1, 3)
    assert network(frames, compute).tolist() == [[4, 4, 4]]
    assert seen == list(network.operators)


def test_a_module_of_torch_computes_the_same(network):
    module, frames = as_module(network), torch.randn(2, 1, 3)
    assert torch.equal(module(frames), network(frames))
    assert [buffer.item() for buffer in module.buffers()] == [2, 3]
    assert module.double()(frames.double()).dtype == torch.float64


def test_watching_a_lowered_network_says_how(network):
    with pytest.raises(ParameterError, match="run_network"), watch_levels(network, print):
        pass


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
    made = GraphBuilder(timesteps=1, input_shape=(3,), takes_frames=True, logit_scale=1.0).finish()
    with pytest.raises(ShapeError, match="uint8"):
        made.check_input(torch.zeros(1, 1, 3))
