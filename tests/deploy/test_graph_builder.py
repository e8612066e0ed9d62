import pytest
import torch
from torch import nn

from lbq.deploy.graph_builder import GraphBuilder, PendingSynapse, ScaledInput, SymbolicValue, one
from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.nodes import Merge, Shortcut, Synapse
from lbq.errors import LoweringError


@pytest.fixture
def network():
    return LoweredNetwork(timesteps=1, input_shape=(4,), takes_frames=True)


@pytest.fixture
def wiring(network):
    return GraphBuilder(network, torch.float32)


def levels(source, channels=4, *, scale=0.5, first=0):
    step = torch.tensor([scale], dtype=torch.float64)
    return ScaledInput(
        source=source, scale=step, max_size=5, channels=channels, first_channel=first
    )


def test_a_draft_becomes_a_synapse_for_every_term_and_their_sum_once(network, wiring):
    layer = nn.Linear(8, 3)
    signal = SymbolicValue(
        terms=(levels("input"), levels("input", scale=0.25, first=4)), axes="time"
    )
    weight = layer.weight.detach().double()
    draft = PendingSynapse(path="fc", inputs=signal, weight=weight, bias=torch.ones(3))
    made = wiring.settle(draft)
    assert wiring.settle(draft) is made
    nodes = [node for _, node in network.nodes()]
    assert [type(node) for node in nodes] == [Synapse, Synapse, Merge]
    torch.testing.assert_close(nodes[0].weight, 0.5 * layer.weight.detach()[:, :4])
    torch.testing.assert_close(nodes[1].weight, 0.25 * layer.weight.detach()[:, 4:])
    assert nodes[0].bias is not None
    assert nodes[1].bias is None  # it is added once
    assert (made.terms[0].channels, made.terms[0].is_current) == (3, True)


def test_levels_reach_a_sum_by_a_shortcut_and_currents_as_they_are(network, wiring):
    current = ScaledInput(source="input", scale=one(), max_size=None, channels=4)
    signal = SymbolicValue(terms=(current, levels("input")), axes="time")
    found = [term.source for term in wiring.all_currents(signal, "sum")]
    assert found == ["input", "sum.shortcut"]
    shortcut = network.get_submodule("sum.shortcut")
    assert isinstance(shortcut, Shortcut)
    assert (shortcut.weight.tolist(), shortcut.weight.dtype) == ([0.5], torch.float32)
    assert wiring.as_currents(signal, "next").source == "next_merge"


def test_concatenated_channels_are_no_currents(wiring):
    for terms in ((levels("input"), levels("input", first=4)), (levels("input", first=4),)):
        with pytest.raises(LoweringError, match="concatenated channels enter the network itself"):
            wiring.all_currents(SymbolicValue(terms=terms, axes="time"), "")
