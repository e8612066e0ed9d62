"""Operators that move values without computing: they cost no accumulation.

Axes count from the channels on, per sample and timestep.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lbq.graph.operators.operator_base import (
    MAX_RANK,
    Interval,
    Operator,
    PaddingPerAxis,
    PerAxis,
    Positive,
    Value,
    check_time,
    require,
)
from lbq.ranges import Range

_Axis = Annotated[int, Range(0, MAX_RANK - 1)]
_Index = Annotated[int, Range(0, 2**24)]
_Size = Annotated[int, Range(1, 2**24)]
_MAX_FACTORS = 8
_Factors = Annotated[tuple[_Size, ...], Range(1, _MAX_FACTORS)]
_Order = Annotated[tuple[Annotated[int, Range(0, _MAX_FACTORS - 1)], ...], Range(1, _MAX_FACTORS)]
_Shape = Annotated[tuple[_Size, ...], Range(1, MAX_RANK)]


class Move(Operator):
    """Base of the operators that only move values; all inputs are levels, or all are currents.

    Args:
        has_time: whether what enters has a time axis.
    """

    has_bound = False
    counted_as = "move"
    takes_bytes = True
    has_time: bool

    @property
    def leading(self) -> int:
        """Number of axes before the channels: time and batch."""
        return 2 if self.has_time else 1

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Move the intervals with their channels; the hull of all where channels are mixed."""
        pairs = zip(inputs, values, strict=True)
        full = [Interval(*(np.broadcast_to(s, v.shape[:1]) for s in i)) for i, v in pairs]
        low = self.channels([interval.low for interval in full], values)
        high = self.channels([interval.high for interval in full], values)
        return None, Interval(low.min(1), high.max(1))


class Concat(Move):
    """Joins values along an axis.

    Args:
        axis: 0 for channels.
        has_time: as in :class:`Move`.
    """

    op = "concat"
    num_inputs = (2, 2**16)
    _: KW_ONLY
    axis: _Axis
    has_time: bool = True

    def __call__(self, *parts: Tensor) -> Tensor:
        """Join; levels of several types get the widest."""
        return torch.cat(parts, self.axis + self.leading)

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Add the lengths along the axis."""
        first, axis = inputs[0], self.axis
        shapes = [value.shape for value in inputs]
        for value in inputs:
            check_time(value, self.has_time)
        require(axis < len(first.shape), "shape", f"it joins {first.shape} along axis {axis}")
        others = {(len(shape), *shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        require(len(others) == 1, "shape", f"it joins shapes {shapes[:4]} along axis {axis}")
        kinds = {value.max_level is None for value in inputs}
        require(len(kinds) == 1, "signal", "it joins levels and currents")
        largest = None if first.max_level is None else max(v.max_level or 0 for v in inputs)
        length = sum(shape[axis] for shape in shapes)
        shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
        return replace(first, shape=shape, max_level=largest)

    def channels(self, entering: Sequence[np.ndarray], values: Sequence[Value]) -> np.ndarray:
        """Join channels; along another axis those of all inputs meet."""
        joined = np.concatenate(entering)
        return joined[:, None] if self.axis == 0 else joined[None]


class Slice(Move):
    """Every ``step``-th value of an axis, from ``start`` up to ``stop``.

    Args:
        axis: 0 for channels.
        start: first index.
        stop: the index behind the last.
        step: distance of two values.
        has_time: as in :class:`Move`.
    """

    op = "slice"
    _: KW_ONLY
    axis: _Axis
    start: _Index
    stop: _Index
    step: Positive = 1
    has_time: bool = True

    def __call__(self, inputs: Tensor) -> Tensor:
        """Take the part."""
        part = [slice(None)] * (self.axis + self.leading)
        return inputs[(*part, slice(self.start, self.stop, self.step))]

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Shorten the axis."""
        (value,) = inputs
        check_time(value, self.has_time)
        shape, axis = value.shape, self.axis
        is_inside = axis < len(shape) and self.start < self.stop <= shape[axis]
        where = f"it takes {self.start}:{self.stop}:{self.step} of axis {axis} of {shape}"
        require(is_inside, "shape", where)
        length = len(range(self.start, self.stop, self.step))
        return replace(value, shape=(*shape[:axis], length, *shape[axis + 1 :]))

    def channels(self, entering: Sequence[np.ndarray], values: Sequence[Value]) -> np.ndarray:
        """Take the channels of the part."""
        (entries,) = entering
        part = slice(self.start, self.stop, self.step) if self.axis == 0 else slice(None)
        return entries[part, None]


class Roll(Move):
    """An axis as a ring, read once around from ``start`` on: a roll, or a flip.

    Args:
        axis: 0 for channels.
        start: index of the first value.
        step: 1 to read on, -1 to read backwards.
        has_time: as in :class:`Move`.
    """

    op = "roll"
    _: KW_ONLY
    axis: _Axis
    start: _Index
    step: Annotated[int, Range(-1, 1)] = 1
    has_time: bool = True

    def __call__(self, inputs: Tensor) -> Tensor:
        """Read around."""
        axis = self.axis + self.leading
        if self.step < 0:
            return inputs.flip(axis).roll(self.start + 1, axis)
        return inputs.roll(-self.start, axis)

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Keep the shape."""
        (value,) = inputs
        check_time(value, self.has_time)
        is_inside = self.axis < len(value.shape) and self.start < value.shape[self.axis]
        where = f"it reads axis {self.axis} of {value.shape} from {self.start} by {self.step}"
        require(is_inside and self.step != 0, "shape", where)
        return value

    def channels(self, entering: Sequence[np.ndarray], values: Sequence[Value]) -> np.ndarray:
        """Read the channels around."""
        (entries,) = entering
        if self.axis > 0:
            return entries[:, None]
        return entries[(self.start + self.step * np.arange(len(entries))) % len(entries), None]


class Rearrange(Move):
    """Another order of the same values: axes are split, permuted and merged, as heads are.

    Args:
        sizes: factors into which the flattened input is split.
        order: of these factors in the output.
        shape: of the output.
        has_time: as in :class:`Move`.
    """

    op = "rearrange"
    _: KW_ONLY
    sizes: _Factors
    order: _Order
    shape: _Shape
    has_time: bool = True

    def __call__(self, inputs: Tensor) -> Tensor:
        """Split, permute and merge."""
        leading = inputs.shape[: self.leading]
        split = inputs.reshape(*leading, *self.sizes)
        axes = (*range(self.leading), *(self.leading + axis for axis in self.order))
        return split.permute(axes).reshape(*leading, *self.shape)

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Give the stored shape."""
        (value,) = inputs
        check_time(value, self.has_time)
        sizes = math.prod(self.sizes), math.prod(self.shape)
        is_order = sorted(self.order) == list(range(len(self.sizes)))
        require(
            is_order and sizes == (value.size, value.size),
            "shape",
            f"it arranges {value.shape} as {self.sizes} in the order {self.order}, and gives "
            f"{self.shape}",
        )
        return replace(value, shape=self.shape)

    def channels(self, entering: Sequence[np.ndarray], values: Sequence[Value]) -> np.ndarray:
        """Follow the channels; all meet unless each one of the output comes from one."""
        (value,), (entries,) = values, entering
        inner = value.size // value.shape[0]
        source = np.arange(value.size) // inner
        source = source.reshape(self.sizes).transpose(self.order).reshape(self.shape[0], -1)
        return entries[source[:, :1]] if (source == source[:, :1]).all() else entries[None]


class Upsample(Move):
    """Every position repeated, or followed by zeros.

    Args:
        factors: one per spatial axis.
        fill: "nearest" repeats a value; "zeros" puts zeros between two values, and none behind
            the last.
        has_time: as in :class:`Move`.
    """

    op = "upsample"
    _: KW_ONLY
    factors: PerAxis
    fill: Literal["nearest", "zeros"] = "nearest"
    has_time: bool = True

    def __call__(self, inputs: Tensor) -> Tensor:
        """Lengthen every spatial axis."""
        first = self.leading + 1
        if self.fill == "nearest":
            for axis, factor in enumerate(self.factors, first):
                inputs = inputs.repeat_interleave(factor, axis)
            return inputs
        made = inputs.new_zeros(*inputs.shape[:first], *self._space(inputs.shape[first:]))
        made[(..., *(slice(None, None, factor) for factor in self.factors))] = inputs
        return made

    def _space(self, space: Sequence[int]) -> tuple[int, ...]:
        less = 0 if self.fill == "nearest" else 1
        return tuple((n - less) * f + less for n, f in zip(space, self.factors, strict=True))

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Lengthen every spatial axis."""
        (value,) = inputs
        check_time(value, self.has_time)
        channels, *space = value.shape
        require(
            len(space) == len(self.factors),
            "shape",
            f"{len(self.factors)} factors {self.factors} lengthen {value.shape}",
        )
        return replace(value, shape=(channels, *self._space(space)))

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Include the zeros."""
        return None, inputs[0].with_zero() if self.fill == "zeros" else inputs[0]


class ZeroPad(Move):
    """Zeros around the spatial axes.

    Args:
        before: number of zeros, per spatial axis.
        after: number of zeros, per spatial axis.
        has_time: as in :class:`Move`.
    """

    op = "zero_pad"
    _: KW_ONLY
    before: PaddingPerAxis
    after: PaddingPerAxis
    has_time: bool = True

    def __call__(self, inputs: Tensor) -> Tensor:
        """Add the zeros."""
        pairs = zip(reversed(self.before), reversed(self.after), strict=True)
        return F.pad(inputs, [number for pair in pairs for number in pair])

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Lengthen every spatial axis."""
        (value,) = inputs
        check_time(value, self.has_time)
        channels, *space = value.shape
        require(
            len(space) == len(self.before) == len(self.after),
            "shape",
            f"{value.shape} gets {self.before} zeros before and {self.after} behind",
        )
        sizes = zip(space, self.before, self.after, strict=True)
        return replace(value, shape=(channels, *(sum(axis) for axis in sizes)))

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Include the zeros."""
        return None, inputs[0].with_zero()
