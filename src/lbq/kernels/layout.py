"""How kernels see a sequence: as values in memory order, so that no layout needs a copy."""

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """How the kernels see a sequence: its strides with time outermost, and how steps repeat."""

    strides: tuple[int, ...]
    run: int


def layout_for(currents: Tensor, step: Tensor) -> Layout | None:
    """Work out the memory order of a sequence; None if it is not dense or the step does not fit."""
    if torch.compiler.is_compiling():  # sizes may be symbols, which have no place in a cache
        return _layout(currents.shape, currents.stride(), step.shape)
    return _known(currents.shape, currents.stride(), step.shape)


def _layout(
    shape: tuple[int, ...], strides: tuple[int, ...], step_shape: tuple[int, ...]
) -> Layout | None:
    instant, size = shape[1:], prod(shape[1:])
    if shape[0] > 1 and strides[0] not in (0, size):
        return None
    axes = range(len(instant))
    is_last = len(instant) == 4 and _is_dense(instant, strides[1:], (0, 2, 3, 1))
    if not (is_last or _is_dense(instant, strides[1:], axes)):
        return None
    order = (size, *strides[1:])
    if prod(step_shape) == 1:
        return Layout(order, max(1, size))
    if tuple(step_shape) != (shape[2], *[1] * (len(shape) - 3)):
        return None
    # where an instant is contiguous both ways (1x1 images), both readings are right
    return Layout(order, 1 if is_last else prod(shape[3:]))


_known = lru_cache(maxsize=1024)(_layout)  # a network asks for the same few at every step


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...], axes: Iterable[int]) -> bool:
    """Say whether values follow each other without a gap, the last of ``axes`` fastest."""
    expected = 1
    for axis in reversed(tuple(axes)):
        if shape[axis] != 1 and strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True


def require_layout(sequence: Tensor, step: Tensor) -> Layout:
    """Return the layout of a sequence that ``layout_for`` was asked about before."""
    layout = layout_for(sequence, step)
    assert layout is not None  # can_run asked
    return layout


def match_layout(values: Tensor | None, like: Tensor) -> Tensor | None:
    """Bring values into the memory order and dtype of ``like``; usually they are.

    A compiler does not know the order of gradients that are still to come, so it always copies, or
    lets whoever makes them write there.
    """
    if values is None:
        return None
    is_known = not torch.compiler.is_compiling()
    if is_known and values.stride() == like.stride() and values.dtype == like.dtype:
        return values
    return torch.empty_like(like).copy_(values)
