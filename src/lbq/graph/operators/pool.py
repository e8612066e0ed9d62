"""Pools of levels and of currents."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lbq.errors import ParameterError
from lbq.graph.operators.operator_base import (
    Interval,
    Operator,
    PaddingPerAxis,
    PerAxis,
    Value,
    check_time,
    require,
    window_positions,
)
from lbq.time import merge_time, split_time

PoolKind = Literal["max", "sum"]


class Pool(Operator):
    """The largest level of every window, or the sum; divisors are absorbed behind it.

    Args:
        kind: "max" or "sum".
        kernel: size of the window, along one or two axes.
        stride: step of the window; 1 by default.
        padding: positions added on both sides; none by default.
        has_time: whether what enters has a time axis.
    """

    op = "pool"
    has_bound = False
    counted_as = "move"
    kind: PoolKind
    _: KW_ONLY
    kernel: PerAxis
    stride: PerAxis = ()
    padding: PaddingPerAxis = ()
    has_time: bool = True

    def __post_init__(self) -> None:
        if self.kind not in ("max", "sum"):
            raise ParameterError(
                f'a pool takes the "max" or the "sum" of levels, got {self.kind!r}'
            )
        axes = len(self.kernel)
        object.__setattr__(self, "stride", self.stride or (1,) * axes)
        object.__setattr__(self, "padding", self.padding or (0,) * axes)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Pool every timestep; levels stay small integers, sums become int32."""
        folded = merge_time(inputs) if self.has_time else inputs
        is_real, is_byte = folded.is_floating_point(), folded.dtype in (torch.uint8, torch.int8)
        exact = torch.float32 if is_byte and self.kind == "max" else torch.float64
        floats = folded if is_real else folded.to(exact)
        is_map = len(self.kernel) == 2
        floats = floats if is_map else floats.unsqueeze(-1)
        kernel, stride, padding = (
            (sizes[0], sizes[1] if is_map else rest)
            for sizes, rest in ((self.kernel, 1), (self.stride, 1), (self.padding, 0))
        )
        if self.kind == "max":
            pooled = F.max_pool2d(floats, kernel, stride, padding).to(inputs.dtype)
        else:
            pooled = F.avg_pool2d(floats, kernel, stride, padding, divisor_override=1)
            pooled = pooled if is_real else pooled.to(torch.int32)
        pooled = pooled if is_map else pooled.squeeze(-1)
        return split_time(pooled, like=inputs) if self.has_time else pooled

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Slide the window."""
        (value,) = inputs
        check_time(value, self.has_time)
        space = window_positions(
            value.shape[1:],
            kernel=self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=(1,) * len(self.kernel),
        )
        fits = all(2 * p <= k for p, k in zip(self.padding, self.kernel, strict=True))
        require(fits, "shape", f"it pads {self.padding} around windows of {self.kernel}")
        largest = value.max_level
        if largest is not None and self.kind == "sum":
            largest *= math.prod(self.kernel)
        return Value(shape=(value.shape[0], *space), has_time=value.has_time, max_level=largest)

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """A sum holds as many values as its window; at the border it holds less."""
        (interval,) = inputs
        if self.kind == "sum":
            interval = interval.times(math.prod(self.kernel))
            interval = interval.with_zero() if any(self.padding) else interval
        return None, interval
