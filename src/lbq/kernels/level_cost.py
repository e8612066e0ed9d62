"""The cost of levels and its gradient: native on CPUs, plain torch elsewhere."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lbq.kernels import native_scan

_ENTRIES = 256
_MOST_EXACT = 2**24
"""Products below this are exact in float32."""


class LevelSums(NamedTuple):
    """Sums over all levels."""

    cost: Tensor
    """Sum of table[level] times fan-out, float64."""
    moved: Tensor
    """Sum of slope[level] times level times fan-out: how the cost grows if all levels grow."""
    active: Tensor
    """Number of levels that are not zero."""


@dataclass(frozen=True, eq=False)
class LevelCost:
    """The cost of levels by a table, at places with a fan-out.

    Args:
        fan_out: fan-out of every place, ``[*n]`` or a shape that broadcasts to it.
        table: cost of the levels 0..N; level 0 costs 0. A negative level costs as much as its size.
        is_signed: whether there are negative levels.
    """

    fan_out: Tensor
    table: Tensor
    is_signed: bool = False

    @cached_property
    def slope(self) -> Tensor:
        """Return how the expected cost grows with every level, under noise of up to one step.

        The mean of c(floor(u + e)) over e in [-1, 1] has the slope (c(S + 1) - c(S - 1)) / 2 in u
        with S = floor(u). Levels stay within 0..N; :meth:`slopes` has the sign of negative ones.
        """
        above = torch.cat([self.table[1:], self.table[-1:]])
        below = torch.cat([self.table[:1], self.table[:-1]])
        return (above - below) / 2

    def cost(self, levels: Tensor) -> Tensor:
        """Return the cost of levels ``[..., *n]``, all together."""
        costs = self.table.to(levels.device)[levels.abs().int()]
        return (costs * self.fan_out.to(levels.device)).sum()

    def slopes(self, levels: Tensor) -> Tensor:
        """Return how the cost of each level ``[..., *n]`` grows, with the sign of the level."""
        slope = self.slope.to(levels.device)[levels.abs().int()]
        slope = slope * levels.sign() if self.is_signed else slope
        return slope * self.fan_out.to(levels.device)

    def sums(self, levels: Tensor) -> LevelSums:
        """Return the sums over levels ``[T, B, *n]``."""
        if not self._is_native(levels):
            moved = (self.slopes(levels) * levels).sum()
            return LevelSums(self.cost(levels), moved, (levels != 0).sum())
        sums = torch.empty(3, dtype=torch.float64)
        torch.ops.lbq.cost_sums(levels, self._in_memory(levels), *self._entries, self._most, sums)
        return LevelSums(*sums)

    def add_gradient(self, grad: Tensor, levels: Tensor, scale: Tensor) -> Tensor:
        """Return ``grad`` plus the slope of the cost at every level, times ``scale``."""
        is_same = grad.stride() == levels.stride() and grad.dtype in native_scan.DTYPES
        if not (is_same and scale.numel() == 1 and self._is_native(levels)):
            return grad + (self.slopes(levels) * scale).to(grad.dtype)
        summed = torch.empty_strided(grad.shape, grad.stride(), dtype=grad.dtype)
        fan_out, factor = self._in_memory(levels), float(scale)
        torch.ops.lbq.cost_backward(
            grad, levels, fan_out, *self._entries, self._most, factor, summed
        )
        return summed

    @property
    def _most(self) -> int:
        return len(self.table) - 1

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor]:
        pad = (0, _ENTRIES - len(self.table))
        table, slope = (torch.nn.functional.pad(x.float(), pad) for x in (self.table, self.slope))
        return table, slope

    @cached_property
    def _is_exact(self) -> bool:
        return float(self.table.abs().max()) * float(self.fan_out.max()) < _MOST_EXACT

    def _is_native(self, levels: Tensor) -> bool:
        """Whether levels are bytes in memory, one instant after another."""
        if levels.dtype != torch.uint8 or levels.device.type != "cpu" or not self._is_exact:
            return False
        size = levels[0, 0].numel()
        is_dense = levels.stride()[:2] == (len(levels[0]) * size, size)
        return is_dense and native_scan.isa() is not None

    def _in_memory(self, levels: Tensor) -> Tensor:
        """Return the fan-out of every place in the order in which levels lie in memory."""
        one = levels[0, 0]
        known = self.__dict__.setdefault("_placed", {})
        if one.stride() not in known:
            placed = torch.empty_strided(one.shape, one.stride(), dtype=torch.float32)
            known[one.stride()] = placed.copy_(self.fan_out.expand(one.shape))
        return known[one.stride()]
