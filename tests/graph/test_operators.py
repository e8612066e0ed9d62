import random

import numpy as np
import pytest
import torch
from random_operators import TIMESTEPS, random_inputs, random_operator
from torch import nn

from lbq.errors import LevelError, ParameterError
from lbq.graph.operators import (
    IntegerNeuron,
    Interval,
    Merge,
    Move,
    Pool,
    Readout,
    RealNeuron,
    Rearrange,
    Shortcut,
    Synapse,
)


def test_an_integer_synapse_is_exact_where_float32_would_round():
    weight = torch.full((1, 600), 127, dtype=torch.int8)
    synapse = Synapse(weight, max_input=255)
    levels = torch.full((1, 1, 600), 255, dtype=torch.uint8)
    levels[..., 0] = 254
    assert synapse(levels).item() == 127 * (255 * 599 + 254) > 2**24
    assert synapse(levels).dtype == torch.int32


def test_a_bias_may_differ_at_every_position():
    bias = torch.arange(8.0).reshape(2, 2, 2)
    synapse = Synapse(torch.zeros(2, 1, 1, 1), bias, max_input=1, has_time=False)
    out = synapse(torch.zeros(3, 1, 2, 2))
    assert torch.equal(out, bias.expand(3, 2, 2, 2))


def test_a_shortcut_multiplies_every_channel_by_its_weight():
    shortcut = Shortcut(torch.tensor([2, 30000], dtype=torch.int16), max_input=5)
    levels = torch.tensor([3, 5], dtype=torch.uint8).reshape(1, 1, 2, 1, 1)
    assert shortcut(levels).flatten().tolist() == [6, 150000]


def test_a_merge_adds_any_number_of_currents():
    parts = [torch.randn(2, 3) for _ in range(4)]
    torch.testing.assert_close(Merge()(*parts), sum(parts))


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_a_pool_keeps_integers(kind):
    levels = torch.randint(0, 255, (2, 3, 4, 6, 6), dtype=torch.uint8)
    pooled = Pool(kind, kernel=(3, 2), stride=(3, 2))(levels)
    windows = levels.long().unfold(3, 3, 3).unfold(4, 2, 2)
    expected = windows.amax((-1, -2)) if kind == "max" else windows.sum((-1, -2))
    assert torch.equal(pooled.long(), expected)


def test_a_pool_of_another_kind_is_refused():
    with pytest.raises(ParameterError, match="median"):
        Pool("median", kernel=(2, 2))


def test_a_readout_adds_or_averages_or_leaves_time():
    currents = torch.arange(6).reshape(3, 1, 2)
    assert Readout("sum")(currents).tolist() == [[6, 9]]
    assert Readout("mean")(currents.float()).tolist() == [[2.0, 3.0]]
    assert torch.equal(Readout("none")(currents), currents)


def test_values_for_other_channels_are_refused():
    shortcut = Shortcut(torch.ones(3), max_input=1)
    with pytest.raises(LevelError, match="3 values for 4 channels"):
        shortcut(torch.zeros(1, 1, 4, 2, 2))


def test_a_neuron_counts_the_thresholds_it_has_reached():
    neuron = RealNeuron(
        torch.tensor([[0.5], [1.0], [4.0]]),
        decay=torch.zeros(1),
        reset_amount=torch.ones(1),
        reset="none",
    )
    currents = torch.tensor([-1.0, 0.49, 0.5, 3.9, 4.0, 99.0]).reshape(1, 6, 1)
    assert neuron(currents).flatten().tolist() == [0, 0, 1, 2, 3, 3]


def integer_neuron(**changes):
    options = {
        "multiplier": 1, "shift": 1, "reset_amount": torch.tensor([10], dtype=torch.int32),
        "reset": "event",
    } | changes  # fmt: skip
    return IntegerNeuron(torch.tensor([[10], [20]], dtype=torch.int32), **options)


def test_an_integer_neuron_decays_by_multiplying_and_shifting_down():  # S8
    grid = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    for multiplier, shift in [(1, 1), (95, 8), (255, 8), (1, 0), (0, 0), (3, 2)]:
        neuron = integer_neuron(multiplier=multiplier, shift=shift)
        got = neuron.integrate(grid, torch.zeros_like(grid))
        expected = [carry * multiplier // 2**shift for carry in grid.tolist()]
        assert got.tolist() == expected


def test_an_integer_neuron_removes_what_its_reset_says():
    current = torch.tensor([[25]], dtype=torch.int32)
    reset_amount = {"event": 10, "level": 20, "none": 0, "zero": 25}
    for reset, amount in reset_amount.items():
        _, carry = integer_neuron(reset=reset).update(torch.zeros_like(current), current)
        assert carry.item() == 25 - amount


def test_a_stream_equals_the_whole_sequence():
    currents = torch.randint(-30, 30, (6, 4, 3), dtype=torch.int32)
    neuron, carry, pieces = integer_neuron(), None, []
    for piece in currents.split(2):
        levels, carry = neuron.stream(piece, carry)
        pieces.append(levels)
    assert torch.equal(torch.cat(pieces), neuron(currents))


def test_nodes_hold_no_state_between_calls():  # S1
    neuron: nn.Module = integer_neuron()
    first, second = (torch.randint(-30, 30, (3, 5, 2), dtype=torch.int32) for _ in range(2))
    alone = neuron(second)
    neuron(first)
    assert torch.equal(neuron(second), alone)
    order = torch.from_numpy(np.random.default_rng(0).permutation(5))
    assert torch.equal(neuron(second[:, order]), alone[:, order])


@pytest.mark.parametrize("seed", range(300))
def test_an_operator_gives_the_shape_and_the_levels_that_it_says(seed):
    node, values = random_operator(seed)
    value = node.infer(values, timesteps=TIMESTEPS)
    given = node(*random_inputs(random.Random(seed), values))
    leading = (TIMESTEPS, 2) if value.has_time else (2,)
    assert given.shape == (*leading, *value.shape)
    if value.max_level is not None:
        assert given.min() >= 0
        assert given.max() <= value.max_level


@pytest.mark.parametrize("seed", range(300))
def test_no_value_leaves_the_interval_of_its_channel(seed):
    assert values_outside(seed) == 0


def values_outside(seed):
    """Count the channels of a random operator whose values leave their interval."""
    node, values = random_operator(seed)
    inputs = random_inputs(random.Random(seed + 1), values)
    entering = [
        Interval.of(0, value.max_level) if value.max_level is not None else _interval_of(x, value)
        for x, value in zip(inputs, values, strict=True)
    ]
    inner, outer = node.bound(entering, values, timesteps=TIMESTEPS)
    value = node.infer(values, timesteps=TIMESTEPS)
    found = _interval_of(node(*inputs), value)
    assert (inner is not None) == node.has_bound
    outside = int(((found.low < outer.low) | (found.high > outer.high)).sum())
    if inner is not None:
        low, high = inner.extremes()
        outside += int(((found.low < low) | (found.high > high)).sum())
    return outside


def _interval_of(values, value):
    """Return the smallest and the largest value of every channel."""
    by_channel = values.movedim(2 if value.has_time else 1, 0).reshape(value.shape[0], -1).long()
    low, high = by_channel.amin(1), by_channel.amax(1)
    return Interval(low.numpy().astype(object), high.numpy().astype(object))


@pytest.mark.parametrize("seed", range(100))
def test_the_channels_of_a_move_are_those_that_its_values_come_from(seed):
    node, values = random_operator(seed * 7)
    if not isinstance(node, Move):
        return
    marks, first = [], 0
    for value in values:
        marks.append(np.arange(first, first + value.shape[0]))
        first += value.shape[0]
    moved = node.channels(marks, values).tolist()
    inputs = [
        torch.from_numpy(mark + 1).reshape(-1, *[1] * (len(value.shape) - 1)).expand(value.shape)
        for mark, value in zip(marks, values, strict=True)
    ]
    leading = 2 if node.has_time else 1
    given = node(*(x.reshape(*[1] * leading, *x.shape).clone() for x in inputs))
    given = given.reshape(given.shape[leading], -1)  # [C, n], 0 where zeros were put
    for channel, row in enumerate(given.tolist()):
        made_of = moved[channel] if len(moved) > 1 else moved[0]
        sources = {mark - 1 for mark in row if mark}
        assert sources == set(made_of) if len(made_of) == 1 else sources <= set(made_of)
    if len(moved[0]) > 1 and isinstance(node, Rearrange):
        assert any(len(set(row)) > 1 for row in given.tolist())
