"""Integer levels: absorbed steps and bit planes (Eqs. 13-15)."""

from collections.abc import Callable

import torch
from torch import Tensor

from lbq.errors import LevelError, ParameterError, ShapeError
from lbq.types import Level, Num, Planes, Step, Weight

MAX_LEVEL = 255
"""The largest level: levels are stored as uint8."""


def check_max_level(max_level: int) -> int:
    """Return the largest level; raise unless it fits one byte."""
    if not 1 <= max_level <= MAX_LEVEL:
        raise ParameterError(
            f"max_level must lie in 1..{MAX_LEVEL}, got {max_level}; levels are stored in one byte"
        )
    return max_level


def num_planes(max_level: int) -> int:
    """Return the number of bits of levels up to ``max_level``: K = ceil(log2(N + 1))."""
    return max_level.bit_length()


def to_planes(level: Level, num: int) -> Planes:
    """Split levels into ``num`` bit planes, least significant first (Eq. 14).

    Inverse of :func:`from_planes`.
    """
    integers = as_integers(level, max_level=2**num - 1)
    return torch.stack([(integers >> k) & 1 for k in range(num)])  # [K, *n]


def from_planes(planes: Planes) -> Level:
    """Add the planes times their powers of two: the inverse of :func:`to_planes`."""
    powers = 2 ** torch.arange(len(planes), dtype=torch.int64, device=planes.device)
    shaped = powers.reshape(-1, *[1] * (planes.dim() - 1))  # [K, 1, ...]
    return (shaped * planes).sum(0).to(planes.dtype)


def popcount(level: Level) -> Level:
    """Count the non-zero bits of each level, 0..255: the accumulations of a synapse."""
    bits = as_integers(level, max_level=MAX_LEVEL)
    bits = bits - ((bits >> 1) & 0x55)
    bits = (bits & 0x33) + ((bits >> 2) & 0x33)
    return (bits + (bits >> 4)) & 0x0F


def popcount_wide(values: Tensor) -> Tensor:
    """Count the non-zero bits of integers of up to 31 bits, such as sums of levels."""
    return popcount(values.to(torch.int32).unsqueeze(-1).view(torch.uint8)).sum(-1)


def bit_sparse_product(
    synapse: Callable[[Tensor], Tensor], planes: Planes, *, dtype: torch.dtype
) -> Num[Tensor, "..."]:
    """Add the synapse's product with each non-zero plane times its power of two (Eq. 15).

    Args:
        synapse: a linear map without bias (a bias would be added once per plane).
        planes: the levels' bits.
        dtype: the dtype in which the synapse receives a plane.

    Returns:
        The result of ``synapse(level)``, exact if the arithmetic of ``dtype`` is exact.
    """
    scaled = [
        synapse(plane.to(dtype)) * 2**k for k, plane in enumerate(planes) if bool(plane.any())
    ]
    return torch.stack(scaled).sum(dim=0) if scaled else synapse(planes[0].to(dtype))


def as_integers(level: Level, *, max_level: int) -> Level:
    """Return the levels as integers; raise if the values are not levels.

    Integers keep their dtype; floats become the smallest integers that hold ``max_level``.
    """
    in_range = level.numel() == 0 or bool((level.min() >= 0) & (level.max() <= max_level))
    fractional = level.is_floating_point() and bool((level != level.floor()).any())
    if fractional or not in_range:
        raise LevelError(
            f"levels must be integers in 0..{max_level}, got values in "
            f"[{level.min().item():g}, {level.max().item():g}]; "
            f"pass the level, not the burst (step * level)"
        )
    if not level.is_floating_point():
        return level
    return level.to(torch.uint8 if max_level <= MAX_LEVEL else torch.int64)


def absorb_step(weight: Weight, step: Step) -> Weight:
    """Scale a synapse's weights by the step of the neurons that feed it (Eq. 13).

    Afterwards the neurons send integer levels and the synapse returns the same current. A bias is
    not scaled. A step per channel scales the weight's second axis, so it fits ungrouped synapses.
    """
    if step.numel() == 1:
        return weight * step.reshape(())
    if step.numel() != weight.shape[1]:
        raise ShapeError(
            f"a step per channel needs one step for each of the weight's {weight.shape[1]} input "
            f"channels (weight shape {tuple(weight.shape)}), got {step.numel()}; "
            f"use the step of the layer that feeds this weight"
        )
    return weight * step.reshape(1, -1, *[1] * (weight.dim() - 2))
