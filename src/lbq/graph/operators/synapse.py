"""Operators that turn levels into currents: convolutions, linear layers, shortcuts."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lbq.errors import BoundError, LevelError
from lbq.graph.operators.operator_base import (
    Interval,
    Operator,
    PaddingPerAxis,
    PerAxis,
    Positive,
    Role,
    Value,
    check_time,
    hull,
    require,
    window_positions,
)
from lbq.graph.operators.rounding import Rounding, along_channels, rounded, unit_of_constant
from lbq.ranges import Range
from lbq.time import merge_time, split_time

MaxInput = Annotated[int, Range(1, 2**31 - 1)] | None
Bias = Annotated[Tensor | None, Role(integer=("I32",), is_optional=True)]
SHORTCUT_MAX = 2**15 - 1
"""The largest weight of an identity shortcut, the only weight of its channel."""
_MAX_CURRENT = 2**30
"""Largest current of one shortcut, so that a few can be added."""
EXACT_FLOAT32 = 2**24
"""Integers below this are exact in float32."""
CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d}
"""By the number of axes of the weights."""


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value per channel to broadcast against ``[B, C, *space]``."""
    if values.numel() == 1:
        return values.reshape([1] * like.dim())
    if values.numel() != like.shape[1]:
        raise LevelError(
            f"{values.numel()} values for {like.shape[1]} channels (shape {tuple(like.shape)})"
        )
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


Product = Callable[..., Tensor]
"""How a backend multiplies levels by weights, without bias."""


class Weighted(Operator):
    """Base of the nodes that turn levels into currents: a product with weights, and a bias.

    Args:
        weight: integers in an integer network.
        bias: None for none.
        max_input: largest size of what enters (levels or pixels); None if that is a real number.
        has_time: whether what enters has a time axis.
    """

    counted_as = "synapse"
    has_own_units = True
    weight: Tensor
    bias: Tensor | None
    max_input: int | None
    has_time: bool

    @property
    def is_integer(self) -> bool:
        """Whether it computes in integers."""
        return not self.weight.is_floating_point()

    def __call__(self, inputs: Tensor, multiply: Product | None = None) -> Tensor:
        """Return the currents of all timesteps; ``multiply`` replaces the dense product."""
        folded = merge_time(inputs) if self.has_time else inputs
        currents = self.multiply(folded) if multiply is None else multiply(self, folded)
        if self.bias is not None:
            is_map = self.bias.dim() > 1
            currents = currents + (self.bias if is_map else per_channel(self.bias, currents))
        return split_time(currents, like=inputs) if self.has_time else currents

    def multiply(self, inputs: Tensor) -> Tensor:
        """Multiply by the weights, without bias; exact in an integer network."""
        raise NotImplementedError

    def check_input(self, value: Value) -> None:
        """Raise if ``has_time`` or ``max_input`` contradict what enters."""
        check_time(value, self.has_time)
        if value.max_level is None:  # the proof knows how large the currents of integers get
            is_right = self.max_input is None or self.is_integer
            require(is_right, "max-input", f"it reads real numbers and claims 0..{self.max_input}")
            return
        require(
            self.max_input is not None and self.max_input >= value.max_level,
            "max-input",
            f"it says that levels to {self.max_input} enter, but they reach {value.max_level}",
        )

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Bound partial sums: the largest input times all negative, or all positive, weights."""
        low, high = inputs[0].extremes()
        if self.max_input is None or low < 0 or high > self.max_input:
            raise BoundError(f"max_input is {self.max_input}, but its inputs lie in {low}..{high}")
        weight = self.weight.flatten(1) if self.weight.dim() > 1 else self.weight[:, None]
        positive = _python_integers(weight.clamp(min=0).sum(1, dtype=torch.long)) * self.max_input
        negative = _python_integers(weight.clamp(max=0).sum(1, dtype=torch.long)) * self.max_input
        sums = Interval(negative, positive)
        if self.bias is None:
            return sums, sums
        currents = sums.plus(constant_interval(self.bias))
        return hull([sums, currents]), currents

    def why_real(self, *, reads_input: bool) -> str:
        """Refuse currents; the input is read as bytes."""
        reads_currents = self.max_input is None and not reads_input
        why = super().why_real(reads_input=reads_input)
        return why or ("it reads real-valued currents, not levels" if reads_currents else "")

    def least_unit(self) -> Tensor:
        """Make the bias fit."""
        return unit_of_constant(self.bias)


class Synapse(Weighted):
    """A convolution or a linear layer: levels in, currents out, at every timestep.

    Args:
        weight: ``[out, in / groups, *kernel]`` with one or two spatial axes, or ``[out, in]``.
        bias: ``[out]``, or of the shape of the output where borders differ.
        max_input: as in :class:`Weighted`.
        has_time: as in :class:`Weighted`.
        stride: of a convolution, per axis; 1 by default.
        padding: zeros on both sides, per axis; none by default.
        dilation: distance of the taps, per axis; 1 by default.
        groups: number of channel groups.
        bits: that hold an integer weight; None for real weights.
    """

    op = "synapse"
    takes_bytes = True
    weight: Annotated[Tensor, Role(integer=("I8", "I16"))]
    bias: Bias = None
    _: KW_ONLY
    max_input: MaxInput
    has_time: bool = True
    stride: PerAxis = ()
    padding: PaddingPerAxis = ()
    dilation: PerAxis = ()
    groups: Positive = 1
    bits: Literal[4, 8, 16] | None = None

    def __post_init__(self) -> None:
        axes = 2 if self.is_linear else self.weight.dim() - 2
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1)):
            object.__setattr__(self, name, getattr(self, name) or (default,) * axes)

    @property
    def is_linear(self) -> bool:
        """Whether this is a linear layer, which flattens its input."""
        return self.weight.dim() == 2

    def multiply(self, inputs: Tensor) -> Tensor:
        """Multiply by the weights, without bias; exact in an integer network."""
        # autocast, TF32 and matmul precisions leave float64 alone; sums of 32 bits are exact in it
        dtype = torch.float64 if self.is_integer else self.weight.dtype
        weight, inputs = self.weight.to(dtype), inputs.to(dtype)
        if self.is_linear:
            product = F.linear(inputs.flatten(1), weight)
        else:
            convolve = CONVOLUTIONS[weight.dim()]
            product = convolve(
                inputs, weight, None, self.stride, self.padding, self.dilation, self.groups
            )
        return product.to(torch.int32) if self.is_integer else product

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Slide the window, or flatten the input of a linear layer."""
        (value,) = inputs
        self.check_input(value)
        weight, groups, space = tuple(self.weight.shape), self.groups, value.shape[1:]
        where = f"weights of shape {weight} in {groups} groups read {value.shape}"
        if self.is_linear:
            ones, zeros = set(self.stride + self.dilation), set(self.padding)
            require(
                (groups, ones, zeros) == (1, {1}, {0}),
                "shape",
                "it is a linear layer with stride, padding, dilation or groups",
            )
            require(weight[1] == value.size, "shape", where)
            shape = weight[:1]
        else:
            require(len(weight) in CONVOLUTIONS, "shape", where)
            require(len(weight) == len(value.shape) + 1, "shape", where)
            is_grouped = weight[1] * groups == value.shape[0] and weight[0] % groups == 0
            require(is_grouped, "shape", where)
            shape = (
                weight[0],
                *window_positions(
                    space,
                    kernel=weight[2:],
                    stride=self.stride,
                    padding=self.padding,
                    dilation=self.dilation,
                ),
            )
        bias = None if self.bias is None else tuple(self.bias.shape)
        require(
            bias in (None, weight[:1], shape), "shape", f"a bias of shape {bias}, and gives {shape}"
        )
        return Value(shape=shape, has_time=value.has_time, max_level=None)

    def to_integer(self, rounding: Rounding) -> "Synapse":
        """Round weights and bias; the mean error of the weights is subtracted from the bias."""
        weight, bias, unit = self.weight.double(), self.bias, rounding.unit
        integers = rounded(weight, unit, bits=rounding.bits)
        if rounding.mean is not None and rounding.bits < 16:
            error = weight - integers.double() * along_channels(unit, weight)
            shift = self._response(error, rounding.mean)
            bias = shift if bias is None else bias.double() + along_channels(shift, bias)
        return replace(self, weight=integers, bias=rounding.optional(bias), bits=rounding.bits)

    def _response(self, weight: Tensor, mean: Tensor) -> Tensor:
        """Return the output with these weights for the mean input, without borders."""
        taps = weight.flatten(2).sum(2) if weight.dim() > 2 else weight  # [out, in / groups]
        parts = zip(taps.chunk(self.groups), mean.chunk(self.groups), strict=True)
        return torch.cat([part @ inputs for part, inputs in parts])


class Shortcut(Weighted):
    """An identity shortcut with one weight per channel, ``[C]`` or ``[1]``."""

    op = "shortcut"
    counted_as = "identity"
    weight: Annotated[Tensor, Role(integer=("I16",))]
    bias: Bias = None
    _: KW_ONLY
    max_input: MaxInput
    has_time: bool = True

    def multiply(self, inputs: Tensor) -> Tensor:
        """Multiply every channel by its weight."""
        dtype = torch.int32 if self.is_integer else self.weight.dtype
        return inputs.to(dtype) * per_channel(self.weight.to(dtype), inputs)

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Keep the shape."""
        (value,) = inputs
        self.check_input(value)
        for tensor in (self.weight, self.bias):
            shape = None if tensor is None else tuple(tensor.shape)
            fits = shape in (None, (1,), value.shape[:1])
            require(fits, "shape", f"{shape} numbers for the channels of {value.shape}")
        return Value(shape=value.shape, has_time=value.has_time, max_level=None)

    def why_real(self, *, reads_input: bool) -> str:
        """Say what to do about a factor of currents."""
        if self.max_input is None and self.bias is None and not reads_input:
            return (
                "it scales real-valued currents, and integers are scaled behind a neuron only; put "
                "the factor into the weights, or behind a neuron"
            )
        return super().why_real(reads_input=reads_input)

    def least_unit(self) -> Tensor:
        """Make weights and currents fit, too."""
        assert self.max_input is not None  # checked
        largest = min(SHORTCUT_MAX, max(1, _MAX_CURRENT // self.max_input))
        return torch.maximum(super().least_unit(), self.weight.double().abs() / largest)

    def to_integer(self, rounding: Rounding) -> "Shortcut":
        """Round weights and bias."""
        weight = (self.weight.double() / rounding.unit).round().to(torch.int16)
        return replace(self, weight=weight, bias=rounding.optional(self.bias))


def constant_interval(values: Tensor) -> Interval:
    """Return the smallest and largest integer of each channel of a constant, ``[C, ...]``."""
    rows = values.long().reshape(len(values), -1)
    return Interval(_python_integers(rows.amin(1)), _python_integers(rows.amax(1)))


def _python_integers(values: Tensor) -> np.ndarray:
    return np.array([int(value) for value in values.flatten().tolist()], dtype=object)
