"""Our accumulation counts against the counters of other libraries, to the last integer.

The other libraries count binary events. So a synapse is run plane by plane, each plane a call of
its own: NeuroBench and SpikingJelly then count what we predict from the levels alone, over bit
planes the bit-sparse accumulations (Eq. 17), over thermometer planes the unary ones (Eq. 16).

The counters bring many packages, so they live in an environment of their own: ``.ci/external``.
"""

import copy
import itertools
import os
from typing import NamedTuple

import pytest
import torch
from torch import nn

import lbq
import lbq.functional as lbqf
from lbq.time import OverTime

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing counter is an error, here a skip
    for package in ("neurobench", "sinabs", "spikingjelly"):
        pytest.importorskip(package, reason=f"{package} is installed by .ci/external")

from neurobench.metrics.workload import SynapticOperations
from neurobench.models import TorchModel
from sinabs.hooks import conv_layer_synops_hook, linear_layer_synops_hook
from spikingjelly.activation_based.op_counter import DispatchCounterMode, SynOpCounter

STEP = 0.25
T, B = 2, 3


class Counts(NamedTuple):
    unary_acs: int
    bit_sparse_acs: int
    unit_event_acs: int


def our_counts(model, x):
    counter = lbq.OpCounter(model, x[:, :1])
    with torch.no_grad(), lbq.watch_levels(model, counter):
        model(x)
    total = counter.table().total()
    return Counts(total.unary_acs, total.bit_sparse_acs, total.unit_event_acs)


# --- the network: every way in which a position's fan-out can differ from its neighbour's


class Fork(nn.Module):
    """Two synapses that read the same neuron, as at the downsampling of a ResNet."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, burst):
        left, right = self.branches
        return left(burst) + right(burst)


def network(max_level):
    """Convolutions of all kinds and a linear layer, a neuron before each of them.

    The first module is a neuron too: then every synapse receives levels, and no real-valued stem
    has to be left out on either side.
    """

    def neuron():
        return lbq.BurstLIF(max_level, step=lbq.FixedStep(STEP))

    model = nn.Sequential(
        neuron(),  # [T, B, 4, 11, 9]
        OverTime(nn.Conv2d(4, 6, 3, padding=1)),
        neuron(),  # [T, B, 6, 11, 9]
        OverTime(nn.Conv2d(6, 8, 3, padding=2, dilation=2, groups=2, bias=False)),
        neuron(),  # [T, B, 8, 11, 9]
        OverTime(
            Fork(
                nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4),
                nn.Conv2d(8, 12, 1, stride=2, bias=False),  # most positions reach nothing
            )
        ),
        neuron(),  # [T, B, 12, 6, 5]
        OverTime(nn.Conv2d(12, 12, (5, 2), stride=(1, 2), padding=(3, 1), groups=12)),
        neuron(),  # [T, B, 12, 8, 3]
        OverTime(
            nn.MaxPool2d(2, padding=1),  # [T * B, 12, 5, 2]
            nn.Conv2d(12, 10, (2, 1), padding=(0, 2), dilation=(3, 1), groups=2),
        ),
        neuron(),  # [T, B, 10, 2, 6]
        OverTime(nn.Flatten(), nn.Linear(120, 7)),
    )
    return fill_weights(model).double().eval()


def fill_weights(model):
    """Set weights that are random, dense and dyadic.

    Products and sums of dyadic numbers are exact in float64, so every way of running the network
    must give the same levels and the same output, bit for bit.
    """
    generator = torch.Generator().manual_seed(3)
    for synapse in synapses(model):
        weight = synapse.weight.data
        magnitude = torch.randint(1, 9, weight.shape, generator=generator)
        sign = 2 * torch.randint(0, 2, weight.shape, generator=generator) - 1
        exponent = round(0.5 * torch.tensor(weight[0].numel()).log2().item()) + 1
        weight.copy_(sign * magnitude * 2.0**-exponent)  # levels stay in range, layer after layer
        if synapse.bias is not None:
            synapse.bias.data.copy_(torch.randint(1, 5, synapse.bias.shape, generator=generator))
            synapse.bias.data.mul_(STEP)
    return model


def synapses(model):
    return [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


# --- the network again, one plane at a time


class PlaneByPlane(nn.Module):
    """A synapse that answers its levels' planes one by one, each in a call of its own."""

    def __init__(self, synapse, split, max_level):
        super().__init__()
        self.bias, synapse.bias = synapse.bias, None  # added once, not once per plane
        self.synapse = synapse
        self.split, self.max_level = split, max_level

    def forward(self, burst):
        planes = self.split(burst / STEP, self.max_level)
        current = sum(weight * STEP * self.synapse(plane) for weight, plane in planes)
        if self.bias is None:
            return current
        return current + self.bias.view(-1, *[1] * (current.dim() - 2))


def bit_planes(level, max_level):
    planes = lbqf.to_planes(level, lbqf.num_planes(max_level))
    return [(2**k, plane.to(level.dtype)) for k, plane in enumerate(planes)]


def thermometer_planes(level, max_level):
    return [(1, (level >= threshold).to(level.dtype)) for threshold in range(1, max_level + 1)]


def in_planes(model, split, max_level):
    """Return a copy of the model that runs every synapse plane by plane."""
    planes = copy.deepcopy(model)
    for name, module in list(planes.named_modules()):
        if isinstance(module, nn.Conv2d | nn.Linear):
            planes.set_submodule(name, PlaneByPlane(module, split, max_level))
    return planes


# --- the counters


def neurobench_counts(model, x):
    """Return NeuroBench's Effective_ACs and Effective_MACs, summed over the batch."""
    hooked, metric = TorchModel(model), SynapticOperations()
    hooked.register_hooks()
    # The metric divides by the number of samples: with one "sample" its mean is the exact sum.
    counted = metric(hooked, hooked(x), (x.unsqueeze(0), None))
    hooked.cleanup_hooks()
    return counted["Effective_ACs"], counted["Effective_MACs"]


def spikingjelly_synops(model, x):
    counter = SynOpCounter()
    with DispatchCounterMode([counter]):
        model(x)
    return counter.get_total()


def sinabs_synops(model, x):
    """Return sinabs' synaptic operations over levels; it gives the mean over all instants."""
    found = []

    def count(synapse, args, output):
        is_linear = isinstance(synapse, nn.Linear)
        rule = linear_layer_synops_hook if is_linear else conv_layer_synops_hook
        rule(synapse, (args[0] / STEP,), output)
        found.append(synapse.hook_data["layer_synops_per_timestep"] * len(output))

    run_with_hooks(model, x, count)
    return sum(round(count.item()) for count in found)


def counts_by_hand(model, x):
    """Visit every output position and every tap of the kernel: the slow clear version."""
    found = []

    def count(synapse, args, output):
        level = args[0] / STEP
        reached = fan_out_by_hand(synapse, level.shape[1:], output.shape[2:])
        rules = lbqf.unary_acs, lbqf.bit_sparse_acs, lbqf.unit_event_acs
        found.append([rule(level, reached) for rule in rules])

    run_with_hooks(model, x, count)
    return Counts(*map(sum, zip(*found, strict=True)))


def fan_out_by_hand(synapse, shape, outputs):
    reached = torch.zeros(shape, dtype=torch.int64)
    if isinstance(synapse, nn.Linear):
        return reached + synapse.out_features
    height, width = shape[1:]
    for i, j in itertools.product(*map(range, outputs)):
        for k, m in itertools.product(*map(range, synapse.kernel_size)):
            row = i * synapse.stride[0] - synapse.padding[0] + k * synapse.dilation[0]
            column = j * synapse.stride[1] - synapse.padding[1] + m * synapse.dilation[1]
            if 0 <= row < height and 0 <= column < width:
                reached[:, row, column] += synapse.out_channels // synapse.groups
    return reached


def run_with_hooks(model, x, hook):
    handles = [synapse.register_forward_hook(hook) for synapse in synapses(model)]
    model(x)
    for handle in handles:
        handle.remove()


# --- the laws


@pytest.fixture(params=[5, 255], ids=lambda max_level: f"{max_level} levels")
def max_level(request):
    return request.param


@pytest.fixture
def model(max_level):
    return network(max_level).requires_grad_(False)


@pytest.fixture
def x(max_level):
    """Currents that drive the first neurons through all of their levels."""
    generator = torch.Generator().manual_seed(7)
    currents = torch.randn(T, B, 4, 11, 9, generator=generator, dtype=torch.float64)
    return currents * max_level * STEP / 2


def test_the_network_uses_the_whole_range_of_levels_in_every_layer(model, x, max_level):
    highest, lowest = {}, {}

    def watch(layer, t, level):
        highest[layer] = max(highest.get(layer, 0), int(level.max()))
        lowest[layer] = min(lowest.get(layer, max_level), int(level.min()))

    with lbq.watch_levels(model, watch):
        model(x)
    assert len(highest) == 6
    assert set(lowest.values()) == {0}
    assert set(highest.values()) == {max_level}
    assert all((synapse.weight != 0).all() for synapse in synapses(model))


def test_our_counts_are_those_of_visiting_every_synapse(model, x):
    assert our_counts(model, x) == counts_by_hand(model, x)


@pytest.mark.parametrize(
    ("split", "acs"), [(bit_planes, "bit_sparse_acs"), (thermometer_planes, "unary_acs")]
)
def test_others_count_our_acs_over_planes(model, x, max_level, split, acs):
    expected, planes = getattr(our_counts(model, x), acs), in_planes(model, split, max_level)
    assert torch.equal(planes(x), model(x))
    assert spikingjelly_synops(planes, x) == expected
    assert neurobench_counts(planes, x) == (expected, 0)


def test_sinabs_counts_our_unary_acs_over_levels(model, x):
    assert sinabs_synops(model, x) == our_counts(model, x).unary_acs


def test_levels_sent_whole_are_macs_to_neurobench_and_nothing_to_spikingjelly(model, x):
    # Their counts over an undivided burst are none of ours: they see that it came, not how big.
    ours = our_counts(model, x)
    assert neurobench_counts(model, x) == (0, ours.unit_event_acs)
    assert spikingjelly_synops(model, x) == 0
    assert ours.unit_event_acs < ours.bit_sparse_acs < ours.unary_acs


# --- products of levels with levels


class Attention(nn.Module):
    """Levels times levels, twice: ``q (k^T v)``, association fixed so that others can follow."""

    def __init__(self, max_level):
        super().__init__()
        self.q, self.k, self.v = (lbq.BurstLIF(max_level, step=1.0) for _ in range(3))
        self.out = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x.flip(-1)), self.v(x.flip(-2))
        return self.out(q @ (k.transpose(-1, -2) @ v))


def coincidences(left, right, split):
    """Return what SpikingJelly counts if all planes meet: it counts pairs of ones."""
    counter, ones = SynOpCounter(), itertools.product(split(left), split(right))
    with DispatchCounterMode([counter]):
        for one, other in ones:
            torch.bmm(one.flatten(0, -3), other.flatten(0, -3))
    return counter.get_total()


@pytest.mark.parametrize("max_level", [1, 5])
@pytest.mark.parametrize(("split", "kind"), [("bits", "bit_pairs"), ("units", "unary")])
def test_spikingjelly_counts_the_pairs_of_attention_over_planes(max_level, split, kind):
    def planes(levels):
        count = int(levels.max())
        if split == "units":
            return [(levels >= n).double() for n in range(1, count + 1)]
        return [((levels.long() >> n) & 1).double() for n in range(count.bit_length())]

    model = Attention(max_level).double().eval().requires_grad_(False)
    x = torch.randn(T, B, 6, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x *= max_level
    with torch.no_grad():
        q, k, v = model.q(x), model.k(x.flip(-1)), model.v(x.flip(-2))
    inner = k.transpose(-1, -2) @ v
    expected = coincidences(k.transpose(-1, -2), v, planes) + coincidences(q, inner, planes)
    counted = lbq.count_ops(model, x, batch_axis=1)
    assert getattr(counted.total_products(), kind) == expected > 0
