"""Layouts are compared with what torch does to a tensor that holds the indices of a node."""

import math

import pytest
import torch

from lbq.deploy.layout import BATCH, CHANNELS, TIME, Factor, Layout, LayoutError

T, B, NODE = 2, 37, (6, 4, 5)


def node(*, timesteps=T, shape=NODE):
    return Layout.of_node(shape, batch=B, timesteps=timesteps)


def values_of(layout, sizes):
    """Compute, by the definition of a factor, the flat index of the node at every position."""
    strides = {axis: math.prod(n for other, n in sizes.items() if other > axis) for axis in sizes}
    total = torch.zeros(layout.shape, dtype=torch.long)
    for n, axis in enumerate(layout.axes):
        index = torch.arange(layout.shape[n])
        inner, value = 1, torch.zeros_like(index)
        for factor in reversed(axis):
            part = index // inner % factor.size
            value = value + part * factor.stride * strides[factor.axis]
            inner *= factor.size
        total = total + value.reshape(-1, *[1] * (len(layout.shape) - 1 - n))
    return total


CHANGES = {
    "merge time": [("reshape", (T * B, 6, 4, 5))],
    "merge and split time": [("reshape", (T * B, 6, 4, 5)), ("reshape", (T, B, 6, 4, 5))],
    "flatten": [("reshape", (T, B, 120))],
    "tokens": [("reshape", (T, B, 6, 20)), ("permute", (0, 1, 3, 2))],
    "heads": [
        ("reshape", (T, B, 6, 20)),
        ("permute", (0, 1, 3, 2)),
        ("reshape", (T, B, 20, 3, 2)),
        ("permute", (0, 1, 3, 2, 4)),
        ("reshape", (T, B * 3, 20, 2)),
    ],
    "heads and back": [
        ("reshape", (T, B, 3, 2, 20)),
        ("permute", (1, 0, 2, 4, 3)),
        ("permute", (1, 0, 2, 4, 3)),
        ("reshape", (T, B, 6, 4, 5)),
    ],
    "channels last": [("permute", (0, 1, 3, 4, 2)), ("reshape", (T, B, 120))],
    "split in other places": [("reshape", (T, B, 2, 12, 5)), ("reshape", (T, B, 24, 5))],
    "new axes": [("reshape", (T, 1, B, 6, 1, 4, 5)), ("permute", (1, 0, 2, 3, 5, 6, 4))],
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_layout_follows_reshapes_and_permutations(name):
    sizes = {TIME: T, BATCH: B, **dict(enumerate(NODE))}
    layout, tensor = node(), torch.arange(T * B * 120).reshape(T, B, *NODE)
    for change, argument in CHANGES[name]:
        layout = layout.reshaped(argument) if change == "reshape" else layout.permuted(argument)
        tensor = tensor.reshape(argument) if change == "reshape" else tensor.permute(argument)
        assert layout.shape == tensor.shape
        assert torch.equal(values_of(layout, sizes), tensor)


def test_what_comes_back_is_like_the_node_again():
    start = node()
    for name in ("merge and split time", "heads and back"):
        layout = start
        for change, argument in CHANGES[name]:
            layout = layout.reshaped(argument) if change == "reshape" else layout.permuted(argument)
        assert layout == start
        assert layout.is_sequence
        assert layout.is_like_node((4, 5))


@pytest.mark.parametrize(
    ("shape", "why"),
    [((B, T, 6, 4, 5), "cuts|mixes"), ((T, B, 5, 4, 6), "mixes"), ((T, B, 4, 6, 5), "mixes")],
)
def test_a_reshape_that_mixes_axes_is_refused(shape, why):
    with pytest.raises(LayoutError, match=why):
        node().reshaped(shape)


def test_time_and_batch_are_not_cut():
    layout = Layout.of_node((6,), batch=B, timesteps=4)
    with pytest.raises(LayoutError, match="cuts time into parts"):
        layout.reshaped((2, 2, B, 6))


def test_leading_axes_are_time_and_batch_in_order():
    merged = node().reshaped((T * B, *NODE))
    static = node(timesteps=None)
    assert (node().leading, merged.leading, static.leading) == (2, 1, 1)
    assert node().is_sequence
    assert not merged.is_sequence
    assert not static.is_sequence
    assert node().permuted((1, 0, 2, 3, 4)).leading is None  # batch first
    assert node().reshaped((T, B * 6, 4, 5)).leading is None
    once = static.reshaped((1, B, *NODE))
    assert once.leading == 2
    assert not once.has_time


def test_one_timestep_stays_time_when_it_is_squeezed_away():
    squeezed = node(timesteps=1).reshaped((B, *NODE))
    assert squeezed.has_time
    assert squeezed.leading == 1
    assert squeezed.reshaped((1, B, *NODE)) == node(timesteps=1)


def test_a_permuted_node_is_not_like_the_node():
    assert not node().permuted((0, 1, 2, 4, 3)).is_like_node((4, 5))
    assert not node().reshaped((T, B, 6, 20)).is_like_node((4, 5))
    swapped = node().reshaped((T, B, 2, 3, 20)).permuted((0, 1, 3, 2, 4)).reshaped((T, B, 6, 4, 5))
    assert not swapped.is_like_node((4, 5))  # channels in another order
    assert not swapped.is_node_axis(2, CHANNELS)
    assert node().is_node_axis(2, CHANNELS)


def test_axes_of_one_pixel_do_not_count():
    flat = node(shape=(6, 1, 1)).reshaped((T, B, 6))
    assert flat.matches(node(shape=(6,)))
    assert flat.is_node_axis(2, CHANNELS)
    assert not node().reshaped((T, B, 120)).matches(node(shape=(120,)))


def test_features_are_found_where_a_flatten_put_them():
    flat = node().permuted((0, 1, 3, 4, 2)).reshaped((T, B, 120))
    values = torch.randn(NODE)
    order = flat.feature_order()
    assert torch.equal(values.permute(1, 2, 0).flatten()[order], values.flatten())
    assert node().reshaped((T, B, 120)).feature_order() is None


def test_channels_are_replaced_where_they_are():
    assert node().with_channels(9).shape == (T, B, 9, 4, 5)
    assert Factor(CHANNELS, 9) in node().with_channels(9).axes[2]
