"""How kernels see a sequence: as values in memory order, so that no layout needs a copy."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """How the kernels see a sequence: its strides with time outermost, and how steps repeat."""

    strides: tuple[int, ...]
    run: int


def layout_for(currents: Tensor, step: Tensor) -> Layout | None:
    """Work out the memory order of a sequence; None if it is not dense or the step does not fit."""
    instant = currents[0]
    size = instant.numel()
    if len(currents) > 1 and currents.stride(0) not in (0, size):
        return None
    is_last = instant.dim() == 4 and instant.is_contiguous(memory_format=torch.channels_last)
    if not (is_last or instant.is_contiguous()):
        return None
    strides = (size, *instant.stride())
    if step.numel() == 1:
        return Layout(strides, max(1, size))
    if step.shape != (currents.shape[2], *[1] * (currents.dim() - 3)):
        return None
    # where an instant is contiguous both ways (1x1 images), both readings are right
    return Layout(strides, 1 if is_last else math.prod(currents.shape[3:]))


def known_layout(sequence: Tensor, step: Tensor) -> Layout:
    """Return the layout of a sequence that ``layout_for`` was asked about before."""
    layout = layout_for(sequence, step)
    assert layout is not None  # can_run asked
    return layout


def ordered(values: Tensor | None, like: Tensor) -> Tensor | None:
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
