import math
import statistics
from collections import Counter

import pytest
import torch

import lbq
from lbq.analysis.layer_stats import (
    BINS_PER_STEP,
    MARGIN,
    LayerLevels,
    LayerStep,
    LevelCounts,
    LevelProfile,
    MembraneCounts,
    StepProfile,
    read_steps,
)
from lbq.errors import LevelError
from lbq.neurons import (
    BinaryLIF,
    BoxET,
    BurstLIF,
    FixedStep,
    LearnedStep,
    OriginalTernaryLIF,
    TernaryLIF,
)
from lbq.neurons.watch import named_neurons

# -- steps ---------------------------------------------------------------------------------------


def profile(*steps):
    return StepProfile(
        layers=tuple(
            LayerStep(layer=str(i), mean=s, smallest=s, largest=s, is_learned=True)
            for i, s in enumerate(steps)
        )
    )


def test_every_layer_of_a_network_is_read_in_order():
    model = lbq.resnet20(num_classes=10, timesteps=2, width=1 / 64)
    for index, module in enumerate(model.modules()):
        if isinstance(module, BurstLIF):
            module.step.set_(torch.tensor([0.1 + index / 1000]))
    found = read_steps(model)
    neurons = {name: m for name, m in model.named_modules() if isinstance(m, BurstLIF)}
    assert [layer.layer for layer in found.layers] == list(neurons)
    assert len(found.layers) == 19
    assert list(found.means) == pytest.approx([n.step().item() for n in neurons.values()])
    assert found.is_learned


def test_steps_of_channels_are_told_by_their_spread():
    neuron = BurstLIF(step=FixedStep(channels=3))
    neuron.step.set_(torch.tensor([0.5, 1.0, 1.5]))
    (layer,) = read_steps(torch.nn.Sequential(neuron)).layers
    assert (layer.smallest, layer.mean, layer.largest) == (0.5, 1.0, 1.5)
    assert not layer.is_learned


def test_variation_is_deviation_over_mean_and_has_no_unit():
    steps = (0.036, 0.461, 0.2, 0.11)
    found = profile(*steps).variation
    assert found == pytest.approx(statistics.pstdev(steps) / statistics.mean(steps))
    assert profile(*(7 * step for step in steps)).variation == pytest.approx(found)
    assert profile(1.0, 1.0).variation == 0


def test_neurons_without_a_step_are_left_out():
    amplitude = OriginalTernaryLIF()  # its threshold stays, whatever it learns
    model = torch.nn.Sequential(BinaryLIF(), BurstLIF(step=LearnedStep(0.3)), amplitude)
    assert [layer.layer for layer in read_steps(model).layers] == ["1"]
    nothing = read_steps(torch.nn.ReLU())
    assert nothing.layers == ()
    assert math.isnan(nothing.variation)


# -- levels --------------------------------------------------------------------------------------


def test_counts_are_those_of_every_level_one_by_one():
    model = lbq.resnet20(num_classes=10, timesteps=2, width=1 / 64).eval()
    seen = {layer: Counter() for layer, _ in named_neurons(model)}
    counts = LevelCounts({layer: neuron.max_level for layer, neuron in named_neurons(model)})

    def watch(layer, t, level):
        seen[layer].update(level.flatten().tolist())
        counts(layer, t, level)

    with torch.no_grad(), lbq.watch_levels(model, watch):
        for seed in (0, 1):
            model(2 * torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(seed)))
    profile = counts.profile()
    assert profile.num_images == 6
    for layer in profile.layers:
        assert dict(enumerate(layer.counts)) == {k: seen[layer.layer][k] for k in range(6)}
    by_hand = [1 - found[0] / found.total() for found in seen.values()]
    assert profile.active_ratio == pytest.approx(sum(by_hand) / 19)


def test_entropy_is_one_for_equal_levels_and_zero_for_a_single_one():
    assert LayerLevels(layer="", counts=(9, 2, 2, 2, 2, 2)).entropy == pytest.approx(1)
    assert LayerLevels(layer="", counts=(9, 0, 7, 0, 0, 0)).entropy == 0
    half = LayerLevels(layer="", counts=(0, 5, 5, 0, 0, 0))
    assert half.entropy == pytest.approx(math.log(2) / math.log(5))


def test_entropy_does_not_know_how_many_were_silent():
    few, many = (LayerLevels(layer="", counts=(n, 3, 2, 1)) for n in (0, 1000))
    assert few.entropy == many.entropy
    assert few.shares == many.shares == (1 / 2, 1 / 3, 1 / 6)
    assert few.active_ratio > many.active_ratio


def test_silent_and_single_level_layers_have_no_entropy():
    silent = LayerLevels(layer="a", counts=(9, 0, 0))
    binary = LayerLevels(layer="b", counts=(9, 4))
    assert silent.shares is None
    assert silent.entropy is None
    assert binary.entropy is None
    profile = LevelProfile(num_images=1, layers=(silent, binary))
    assert profile.entropy is None
    assert profile.share(1) == 1.0
    assert profile.share(2) == 0.0


def test_ternary_levels_count_by_size():
    neuron = TernaryLIF()
    counts = LevelCounts({"": 1})
    with lbq.watch_levels(neuron, counts):
        neuron(torch.tensor([[[-3.0, 0.0, 3.0, 0.2]]]))
    assert counts.profile().layers[0].counts == (2, 2)
    assert counts.profile().is_signed


def test_unknown_layers_and_impossible_levels_are_refused():
    counts = LevelCounts({"here": 2})
    with pytest.raises(LevelError, match="'there' arrived"):
        counts("there", 0, torch.zeros(1, 1, dtype=torch.uint8))
    with pytest.raises(LevelError, match="here emitted level 3, but its largest is 2"):
        counts("here", 0, torch.full((1, 1), 3, dtype=torch.uint8))


# -- membranes -----------------------------------------------------------------------------------


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
