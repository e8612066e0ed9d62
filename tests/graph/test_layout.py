"""Layouts are compared with what torch does to a tensor that holds the indices of a node."""

import math

import pytest
import torch

from lbq.graph.layout import BATCH, CHANNELS, TIME, Factor, Layout, LayoutError

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


def applied(layout, *changes):
    for change, argument in changes:
        layout = layout.reshaped(argument) if change == "reshape" else layout.permuted(argument)
    return layout


@pytest.mark.parametrize("name", ["merge and split time", "heads and back"])
def test_what_comes_back_is_the_node_itself_again(name):
    assert applied(node(), *CHANGES[name]) == node()


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


def test_time_and_batch_are_found_where_they_are():
    merged, static = node().reshaped((T * B, *NODE)), node(timesteps=None)
    assert node().is_sequence
    assert not merged.is_sequence
    assert not node().permuted((1, 0, 2, 3, 4)).is_sequence  # batch first
    assert static.is_static
    assert static.reshaped((1, B, *NODE)).is_static
    assert not merged.is_static
    assert (node().first_own, merged.first_own, static.first_own) == (2, 1, 1)
    assert node().reshaped((T, B * 6, 4, 5)).content(1) == (Factor(CHANNELS, 6),)


def test_one_timestep_stays_time_when_it_is_squeezed_away():
    squeezed = node(timesteps=1).reshaped((B, *NODE))
    assert squeezed.has_time
    assert squeezed.first_own == 1
    assert squeezed.reshaped((1, B, *NODE)) == node(timesteps=1)


def test_an_axis_is_whole_if_it_is_an_axis_of_the_node():
    swapped = applied(
        node(),
        ("reshape", (T, B, 2, 3, 20)),
        ("permute", (0, 1, 3, 2, 4)),
        ("reshape", (T, B, 6, 4, 5)),
    )
    assert node().is_whole(2)
    assert node().is_whole(3, 1)
    assert not swapped.is_whole(2)  # channels in another order
    assert not node().reshaped((T, B, 6, 20)).is_whole(3, 1)
    assert node(shape=(6, 1, 1)).reshaped((T, B, 6)).is_whole(2)


GROUPINGS = {
    "same": (CHANGES["merge time"], lambda x: [x.content(1), x.content(2), x.content(3)]),
    "tokens first": (CHANGES["tokens"], lambda x: [x.content(2), x.content(3)]),
    "heads": (CHANGES["heads"][:4], lambda x: [x.content(2), x.content(3), x.content(4)]),
    "flat": (CHANGES["channels last"], lambda x: [x.content(2)]),
}


@pytest.mark.parametrize("name", GROUPINGS)
def test_an_arranged_node_holds_the_values_of_the_tensor(name):
    changes, grouped = GROUPINGS[name]
    layout = applied(node(), *changes)
    new = layout.arranged(grouped(layout))
    values = torch.randn(NODE)
    tensor = torch.randn(T, B, *NODE)
    tensor[0, 0] = values
    for change, argument in changes:
        tensor = tensor.reshape(argument) if change == "reshape" else tensor.permute(argument)
    first = tensor.flatten(0, layout.first_own - 1)[0]
    assert torch.equal(new.moved(values), first.reshape(new.layout.node))
    assert new.layout.shape == layout.shape
    assert new.is_same == (name == "same")


def test_a_node_is_arranged_like_that_of_another_tensor():
    maps = node(shape=(6, 4, 5)).reshaped((T, B, 6, 20)).permuted((0, 1, 3, 2))  # tokens of maps
    tokens = Layout.of_node((20, 6), batch=B, timesteps=T)
    new = tokens.arranged_like(maps)
    assert new.layout == maps
    values = torch.randn(20, 6)
    assert torch.equal(new.moved(values), values.t().reshape(6, 4, 5))
    assert maps.arranged_like(maps).is_same
    assert (
        Layout.of_node((8, 15), batch=B, timesteps=T).arranged_like(
            Layout.of_node((10, 12), batch=B, timesteps=T)
            .reshaped((T, B, 120))
            .reshaped((T, B, 10, 12))
        )
        is None
    )  # of another shape


@pytest.mark.parametrize("name", ["tokens", "channels last", "heads and back"])
def test_values_in_the_order_of_a_tensor_are_brought_into_that_of_the_node(name):
    layout, tensor = applied(node(), *CHANGES[name]), torch.randn(T, 3, *NODE)
    moved = tensor
    for change, argument in CHANGES[name]:
        sizes = [3 if n == B else n for n in argument]
        moved = moved.reshape(sizes) if change == "reshape" else moved.permute(argument)
    assert torch.equal(layout.to_node(moved), tensor)


def test_a_whole_axis_gets_another_size():
    layout = node().permuted((0, 1, 3, 4, 2)).resized(4, 9)
    assert layout.shape == (T, B, 4, 5, 9)
    assert layout.node == (9, 4, 5)
    assert layout.is_whole(4)
    assert node().resized(2, 1).is_whole(2)
