import math
from collections import Counter

import pytest
import torch

import lbq
from lbq.analysis.layer_stats import LayerLevels, LevelCounts, LevelProfile
from lbq.errors import LevelError
from lbq.neurons import TernaryLIF
from lbq.neurons.watch import named_neurons


def test_counts_are_those_of_a_person_who_looks_at_every_level():
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


def test_strangers_and_impossible_levels_are_refused():
    counts = LevelCounts({"here": 2})
    with pytest.raises(LevelError, match="'there' arrived"):
        counts("there", 0, torch.zeros(1, 1, dtype=torch.uint8))
    with pytest.raises(LevelError, match="here emitted level 3, but its largest is 2"):
        counts("here", 0, torch.full((1, 1), 3, dtype=torch.uint8))
