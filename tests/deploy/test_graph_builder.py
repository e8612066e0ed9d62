import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lbq.deploy.graph_builder import (
    GraphBuilder,
    PendingSynapse,
    ScaledInput,
    SymbolicValue,
    absorb,
    batch_norm_affine,
    fold_batch_norm,
    unit_scale,
)
from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.nodes import Merge, Shortcut, Synapse
from lbq.errors import LoweringError


@pytest.fixture
def network():
    return LoweredNetwork(timesteps=1, input_shape=(4,), takes_frames=True)


@pytest.fixture
def builder(network):
    return GraphBuilder(network, torch.float32)


def levels(source, channels=4, *, scale=0.5, first=0):
    step = torch.tensor([scale], dtype=torch.float64)
    return ScaledInput(
        source=source, scale=step, max_size=5, channels=channels, first_channel=first
    )


def test_a_draft_becomes_a_synapse_for_every_term_and_their_sum_once(network, builder):
    layer = nn.Linear(8, 3)
    signal = SymbolicValue(
        terms=(levels("input"), levels("input", scale=0.25, first=4)), axes="time"
    )
    weight = layer.weight.detach().double()
    pending = PendingSynapse(path="fc", inputs=signal, weight=weight, bias=torch.ones(3))
    made = builder.materialize(pending)
    assert builder.materialize(pending) is made
    nodes = [node for _, node in network.nodes()]
    assert [type(node) for node in nodes] == [Synapse, Synapse, Merge]
    torch.testing.assert_close(nodes[0].weight, 0.5 * layer.weight.detach()[:, :4])
    torch.testing.assert_close(nodes[1].weight, 0.25 * layer.weight.detach()[:, 4:])
    assert nodes[0].bias is not None
    assert nodes[1].bias is None  # it is added once
    assert (made.terms[0].channels, made.terms[0].is_current) == (3, True)


def test_levels_reach_a_sum_by_a_shortcut_and_currents_as_they_are(network, builder):
    current = ScaledInput(source="input", scale=unit_scale(), max_size=None, channels=4)
    signal = SymbolicValue(terms=(current, levels("input")), axes="time")
    found = [term.source for term in builder.all_currents(signal, "sum")]
    assert found == ["input", "sum.shortcut"]
    shortcut = network.get_submodule("sum.shortcut")
    assert isinstance(shortcut, Shortcut)
    assert (shortcut.weight.tolist(), shortcut.weight.dtype) == ([0.5], torch.float32)
    assert builder.as_currents(signal, "next").source == "next_merge"


def test_concatenated_channels_are_no_currents(builder):
    for terms in ((levels("input"), levels("input", first=4)), (levels("input", first=4),)):
        with pytest.raises(LoweringError, match="concatenated channels enter the network itself"):
            builder.all_currents(SymbolicValue(terms=terms, axes="time"), "")


def term(scale, channels, **more):
    return ScaledInput(
        source="n", scale=torch.as_tensor(scale).double(), max_size=5, channels=channels, **more
    )


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_absorbed_weights_take_levels_instead_of_bursts(groups):
    torch.manual_seed(0)
    steps = torch.rand(4).double() + 0.5
    weight = torch.randn(8, 4 // groups, 3, 3).double()
    levels = torch.randint(0, 6, (2, 4, 5, 5)).double()
    expected = F.conv2d(steps.reshape(1, -1, 1, 1) * levels, weight, groups=groups)
    absorbed = absorb(weight, term(steps, 4), channels=4, groups=groups)
    torch.testing.assert_close(F.conv2d(levels, absorbed, groups=groups), expected)


def test_flattened_channels_repeat_their_step():
    steps, weight = torch.tensor([1.0, 10.0]).double(), torch.ones(3, 8).double()
    absorbed = absorb(weight, term(steps, 2), channels=2, groups=1)
    assert absorbed[0].tolist() == [1.0] * 4 + [10.0] * 4


def test_a_concatenated_part_reads_its_own_weights():
    weight = torch.arange(5.0).reshape(1, 5).double()
    absorbed = absorb(weight, term([2.0], 2, first_channel=3), channels=5, groups=1)
    assert absorbed.tolist() == [[6.0, 8.0]]


def test_terms_of_one_node_become_one():
    one = SymbolicValue(terms=(term([1.0], 2),), axes="time")
    assert one.added(one).terms[0].scale.item() == 2.0
    assert len(one.added(one).terms) == 1


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_a_folded_synapse_does_what_both_did(has_bias, affine):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, bias=has_bias).double()
    norm = nn.BatchNorm2d(5, affine=affine).double().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 2)
    if affine:
        norm.weight.data.normal_()
        norm.bias.data.normal_()
    gain, offset = batch_norm_affine(norm, path="norm")
    weight, bias = fold_batch_norm(conv.weight, conv.bias, gain, offset)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(
        nn.functional.conv2d(images, weight, bias), norm(conv(images)), rtol=1e-12, atol=1e-12
    )


def test_a_norm_without_running_statistics_is_refused_by_name():
    with pytest.raises(LoweringError, match=r"stages\.0\.norm"):
        batch_norm_affine(nn.BatchNorm2d(3, track_running_stats=False), path="stages.0.norm")
