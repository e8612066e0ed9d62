"""How real numbers become integers: weights, constants and decays in the units of currents."""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

LEAST_UNIT = 1e-30
"""Of currents without weights or constants."""
_MAX_UNITS = 2**20
"""Largest threshold or constant in units."""
_CLIP_SHARES = tuple(1 - k / 40 for k in range(21))
"""Candidate clipping points, as shares of the largest weight."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounding:
    """What the integers of one operator depend on."""

    unit: Tensor
    """Value of one integer, ``[C]`` or ``[1]``: of the currents that it gives, or else reads."""
    bits: int
    """Of its weights."""
    mean: Tensor | None = None
    """Mean of each input channel on calibration inputs; None without them."""

    def constant(self, values: Tensor) -> Tensor:
        """Round a constant, ``[C, ...]``."""
        return (values.double() / along_channels(self.unit, values)).round().to(torch.int32)

    def optional(self, values: Tensor | None) -> Tensor | None:
        """Round a constant, if there is one."""
        return None if values is None else self.constant(values)


def along_channels(values: Tensor, like: Tensor) -> Tensor:
    """Shape ``[1]`` or ``[C]`` to broadcast against ``[C, *space]``."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


def unit_of_constant(values: Tensor | None) -> Tensor:
    """Return the smallest unit per channel, ``[C]`` or ``[1]``, of a constant, ``[C, ...]``."""
    if values is None:
        return torch.full((1,), LEAST_UNIT, dtype=torch.float64)
    rows = values.double().abs().reshape(len(values), -1)
    return (rows.amax(1) / _MAX_UNITS).clamp(min=LEAST_UNIT)


def rounded(weight: Tensor, unit: Tensor, *, bits: int) -> Tensor:
    """Round weights to signed integers of ``bits`` in these units, clipped symmetrically."""
    largest = 2 ** (bits - 1) - 1
    integers = (weight / along_channels(unit, weight)).round().clamp(-largest, largest)
    return integers.to(torch.int8 if bits <= 8 else torch.int16)


def best_unit(weight: Tensor, *, bits: int) -> Tensor:
    """Find per output channel the unit with the least squared error of rounding and clipping."""
    largest = 2 ** (bits - 1) - 1
    widest = (weight.flatten(1).abs().amax(1) / largest).clamp(min=1e-30)
    best, least = widest, torch.full_like(widest, torch.inf)
    for share in _CLIP_SHARES:
        unit = widest * share
        kept = rounded(weight, unit, bits=bits).double() * along_channels(unit, weight)
        lost = (kept - weight).square().flatten(1).sum(1)
        best, least = torch.where(lost < least, unit, best), torch.minimum(lost, least)
    return best


def decay_as_fraction(decay: float, *, max_shift: int) -> tuple[int, int]:
    """Write a decay as multiplier and shift: ``multiplier / 2**shift``, as short as possible."""
    nearest = Fraction(round(decay * 2**max_shift), 2**max_shift)
    return nearest.numerator, nearest.denominator.bit_length() - 1
