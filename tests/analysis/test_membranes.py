import pytest
import torch

import lbq
from lbq.analysis.layer_stats import BINS_PER_STEP, MARGIN, MembraneCounts
from lbq.neurons import BinaryLIF, BoxET, BurstLIF, FixedStep


def look(neuron, currents):
    counts = MembraneCounts(neuron)
    with counts.watching(), torch.no_grad():
        neuron(currents)
    (layer,) = counts.layers()
    return layer


def slow_ratios(neuron, currents):
    """Stream one instant at a time; the carry plus what the reset took is the membrane."""
    step, found, carry = neuron.step(), [], None
    for current in currents.split(1):
        before = 0 if carry is None else carry
        found.append((neuron.decay() * before + current[0]) / step)
        _, carry = neuron.stream(current, carry)
    return torch.stack(found)


@pytest.mark.parametrize("mode", ["event", "level", "none"])
def test_membranes_are_those_that_the_neuron_had(mode, currents):
    neuron = BurstLIF(max_level=4, step=FixedStep(0.7), reset_mode=mode)
    layer = look(neuron, currents)
    with torch.no_grad():
        ratios = slow_ratios(neuron, currents)
    assert layer.total == ratios.numel()
    edges = torch.linspace(-MARGIN, 4 + MARGIN, (4 + 2 * MARGIN) * BINS_PER_STEP + 1)
    by_hand, _ = torch.histogram(ratios.flatten(), edges)
    moved = (by_hand - torch.tensor(layer.histogram)).abs().sum()
    assert moved <= 4  # a ratio on the edge of a bin may fall on either side
    assert sum(layer.histogram) < layer.total  # some lie outside, and are still in the total
    assert layer.lower_tail == pytest.approx((ratios < 1).double().mean().item())
    assert layer.upper_tail == pytest.approx((ratios > 4).double().mean().item())
    inside = ((ratios >= 0.5) & (ratios <= 4.5)).double().mean().item()
    assert layer.outside_box == pytest.approx(1 - inside)


def test_a_level_is_a_membrane_beyond_its_threshold(currents):
    neuron = BurstLIF(max_level=5, step=FixedStep(0.5))
    active = 0

    def watch(layer, t, level):
        nonlocal active
        active += int((level > 0).sum())

    with lbq.watch_levels(neuron, watch):
        layer = look(neuron, currents)
    assert active == layer.total - layer.num_below  # the plateau begins at the first threshold


def test_shares_are_a_whole(currents):
    layer = look(BurstLIF(), currents)
    assert layer.lower_tail + layer.on_plateau + layer.upper_tail == pytest.approx(1)
    assert layer.plateau == (1, 5)
    assert layer.tail == pytest.approx(0.5)


def test_a_box_is_its_own_plateau(currents):
    layer = look(BurstLIF(surrogate=BoxET()), currents)
    assert layer.tail is None
    assert layer.outside_box == pytest.approx(layer.lower_tail + layer.upper_tail)


def test_batches_add_up_and_fused_networks_open(currents):
    model = lbq.resnet20(num_classes=10, timesteps=2, width=1 / 64, fused=True).eval()
    images = torch.randn(4, 3, 8, 8)
    whole, halves = MembraneCounts(model), MembraneCounts(model)
    with torch.no_grad():
        with whole.watching():
            expected = model(images)
        with halves.watching():
            model(images[:2])
            model(images[2:])
        torch.testing.assert_close(model(images), expected)  # nothing stays behind
    assert len(whole.layers()) == 19
    assert [a.total for a in whole.layers()] == [b.total for b in halves.layers()]
    first, again = whole.layers()[0], halves.layers()[0]
    moved = sum(abs(a - b) for a, b in zip(first.histogram, again.histogram, strict=True))
    assert moved <= 0.001 * first.total


def test_other_neurons_are_left_out(currents):
    model = torch.nn.Sequential(BinaryLIF())
    counts = MembraneCounts(model)
    with counts.watching():
        model(currents)
    assert counts.layers() == ()
