"""Recognise levels by their values: integers 0..255, or signed ones, times a step.

The step may differ between channels. This needs no knowledge of the neurons, so it works for the
networks of any library.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LEVEL = 255
_SAMPLE, _DISTINCT = 4096, 512
"""Values to check first: a few are enough to recognise real numbers."""
_FEW_VALUES = 2**16
"""Values to try with one step per channel before all values."""
_PART = 2**17
"""Values that are divided at once, so that they stay in a cache."""
_TOLERANCE = 1e-3
"""How far a value may be from a multiple of the step, in steps."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Values as integers times a step."""

    integers: Tensor
    step: float
    """The smallest step of all channels."""
    max_level: int


def find_levels(
    values: Tensor, *, channel_axis: int | None = None, most: int = MAX_LEVEL
) -> Levels | None:
    """Return values as integers times a step; None if they are real numbers.

    Args:
        values: any tensor.
        channel_axis: axis along which steps may differ.
        most: the largest integer.
    """
    values = values.detach()  # a network may compute gradients
    if not values.is_floating_point():
        return _as_levels(values.double(), torch.ones(1, dtype=torch.float64), most)
    some = values.flatten()
    some = some[:: max(1, len(some) // _SAMPLE)].double()
    step = _common_step(some[some != 0].abs(), most)
    wide = torch.float32 if most <= MAX_LEVEL else torch.float64  # 24 bits tell 255 levels apart
    if step is not None and (found := _as_levels(values.to(wide), step.to(wide), most)):
        return found
    if channel_axis is None:
        return None
    axes = [n for n in range(values.dim()) if n != channel_axis % values.dim()]
    few = values[: max(1, _FEW_VALUES * len(values) // max(1, values.numel()))]
    for exact in (few.double(), values.double()):  # a few samples show real numbers
        size = exact.abs()
        smallest = torch.where(size > 0, size, torch.full_like(size, torch.inf))
        found = _as_levels(exact, smallest.amin(axes, keepdim=True), most)
        if found is None:
            return None
    return found


def _common_step(sizes: Tensor, most: int) -> Tensor | None:
    """Return the largest number that all sizes are multiples of; None if it is too small.

    This is Euclid's algorithm on real numbers. For integers times a step it finds the step, or a
    multiple of it if the integers have a common factor.
    """
    if not len(sizes):
        return torch.ones(1, dtype=torch.float64)
    step, least = float(sizes.min()), float(sizes.max()) / (most + 0.5)
    for size in sizes.unique()[:_DISTINCT].tolist():
        step = _common_divisor(step, size)
        if step < least:
            return None
    return torch.tensor([step], dtype=torch.float64)


def _common_divisor(one: float, other: float) -> float:
    """Return the largest number that both are multiples of, but for rounding."""
    while other > 0:
        one, other = other, one % other
        if min(other, one - other) < _TOLERANCE * one:
            other = 0.0
    return one


def _as_levels(values: Tensor, step: Tensor, most: int) -> Levels | None:
    finite = torch.where(step.isfinite(), step, torch.ones_like(step))  # a channel of zeros
    if not values.numel():
        return Levels(values.to(torch.uint8), float(finite.min()), 0)
    if finite.numel() == 1 and values.numel() > _PART:
        return _in_parts(values, finite, most)
    ratio = values / finite
    integers = ratio.round()
    low, high = (int(side) if side.isfinite() else most + 1 for side in integers.aminmax())
    largest = max(-low, high)
    if largest > most or not float(ratio.sub_(integers).abs_().max()) <= _TOLERANCE:
        return None
    is_byte = largest <= MAX_LEVEL and low >= 0
    return Levels(
        integers.to(torch.uint8 if is_byte else torch.int32), float(finite.min()), largest
    )


def _in_parts(values: Tensor, step: Tensor, most: int) -> Levels | None:
    """Divide part by part; stop at the first part with real numbers."""
    found: list[Levels] = []
    for part in values.reshape(-1).split(_PART):
        levels = _as_levels(part, step, most)
        if levels is None:
            return None
        found.append(levels)
    is_byte = all(levels.integers.dtype is torch.uint8 for levels in found)
    dtype = torch.uint8 if is_byte else torch.int32
    integers = torch.cat([levels.integers.to(dtype) for levels in found]).reshape(values.shape)
    return Levels(integers, float(step.min()), max(levels.max_level for levels in found))
