"""The nodes of a lowered network.

Values between nodes are *levels* (small integers, ``[T, B, *n]``) or *currents* (real numbers, or
int32 in an integer network). Steps were absorbed into the weights. All tensors are buffers.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq.errors import LevelError, ParameterError
from lbq.functional.membrane import integrate, lif_membrane, steps_removed
from lbq.functional.quantize import count_thresholds
from lbq.models.time import merge_time, split_time
from lbq.neurons.carries import active_carries
from lbq.neurons.neuron import Neuron

NodeReset = Literal["event", "level", "none", "zero"]
"""As a neuron's reset mode; "zero" sets the membrane of a neuron that emitted to zero."""


class LevelNeuron(Neuron):
    """Any neuron of this library with its step absorbed: currents in, integer levels out.

    A level is the number of thresholds that the membrane has reached (Eq. 3). They are
    the smallest membranes at which the trained neuron's own formula reaches each level, so that
    both agree on every float.

    Args:
        thresholds: thresholds, rising, ``[N, 1]`` or ``[N, C]``; for a signed neuron, of its size.
        decay: share of the carry that survives a timestep, ``[1]``.
        reset_amount: what one unit of reset takes from the membrane, ``[1]`` or ``[C]``.
        reset: whether emission removes that once, once per level, never, or forgets everything.
        is_signed: whether the level has the membrane's sign.
        resets_after_decay: whether the reset escapes the decay of the next timestep (Eq. 1).
        per_threshold_state: whether every threshold has a membrane of its own.
        mixture: ``[T, T]`` that mixes the currents of all timesteps first; None for none.
    """

    def __init__(
        self,
        thresholds: Tensor,
        *,
        decay: Tensor,
        reset_amount: Tensor,
        reset: NodeReset,
        is_signed: bool = False,
        resets_after_decay: bool = False,
        per_threshold_state: bool = False,
        mixture: Tensor | None = None,
    ) -> None:
        super().__init__(max_level=len(thresholds))
        self.thresholds: Tensor
        self.decay: Tensor
        self.reset_amount: Tensor
        self.mixture: Tensor | None
        self.register_buffer("thresholds", thresholds)
        self.register_buffer("decay", decay)
        self.register_buffer("reset_amount", reset_amount)
        self.register_buffer("mixture", mixture)
        self.reset: NodeReset = reset
        self.is_signed, self.needs_whole_sequence = is_signed, mixture is not None
        self.resets_after_decay, self.per_threshold_state = resets_after_decay, per_threshold_state

    def forward(self, currents: Tensor) -> Tensor:
        """Return the levels of a whole sequence, from rest."""
        levels, _ = self.stream(currents, None)
        return levels

    def stream(self, currents: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the levels of a part of a sequence and its last carry; None starts from rest."""
        carries = active_carries()
        if carries is not None and carry is None:  # the network is run by lbq.stream
            return carries.advance(self, currents)
        currents = self.receive(currents)
        if self.mixture is not None:
            shaped = self.mixture.reshape(*self.mixture.shape, *[1] * (currents.dim() - 1))
            currents = torch.stack([(row * currents).sum(0) for row in shaped.unbind(0)])
        if carry is None:
            rest = torch.zeros_like(currents[0])
            carry = torch.stack([rest] * self.max_level) if self.per_threshold_state else rest
        levels: list[Tensor] = []
        for current in currents.unbind(0):
            level, carry = self.update(carry, current)
            levels.append(level)
        emitted = torch.stack(levels)  # [T, B, *n]
        self.emit(emitted)
        return emitted, carry

    def update(self, carry: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate, count thresholds and reset: one timestep."""
        membrane = self.integrate(carry, current.expand_as(carry))  # [N, B, *n] if it is split
        if self.per_threshold_state:
            thresholds = self.thresholds.reshape(-1, *[1] * current.dim())  # [N, 1, ...]
            spikes = (membrane >= thresholds).to(torch.uint8)
            return spikes.sum(0, dtype=torch.uint8), torch.where(spikes > 0, 0, membrane)
        thresholds = torch.stack(
            [per_channel(threshold, current[:1])[0] for threshold in self.thresholds.unbind(0)]
        )
        size = membrane.abs() if self.is_signed else membrane
        level = count_thresholds(size, thresholds).to(torch.uint8)
        if self.is_signed:
            level = level.to(torch.int8) * membrane.sign().to(torch.int8)
        return level, self._after(membrane, level)

    def integrate(self, carry: Tensor, current: Tensor) -> Tensor:
        """Decay the carry and add the current."""
        if self.resets_after_decay:  # the carry is the last membrane
            spike = count_thresholds(carry, self.thresholds)
            return lif_membrane(
                carry,
                current,
                spike=spike,
                decay=self.decay,
                threshold=self.reset_amount,
                reset=1.0,
            )
        return integrate(carry, current, decay=self.decay)

    def _after(self, membrane: Tensor, level: Tensor) -> Tensor:
        if self.resets_after_decay or self.reset == "none":
            return membrane
        if self.reset == "zero":
            return torch.where(level != 0, torch.zeros_like(membrane), membrane)
        units = steps_removed(level, mode=self.reset).to(membrane.dtype)
        return membrane - per_channel(self.reset_amount, membrane) * units

    def extra_repr(self) -> str:
        """Show the range of levels."""
        low = -self.max_level if self.is_signed else 0
        return f"levels {low}..{self.max_level}, reset={self.reset}"


class IntegerNeuron(LevelNeuron):
    """A neuron in int32: thresholds, reset and decay are integers in the unit of its currents.

    The decay is a product and an arithmetic shift, ``(multiplier * carry) >> shift``, which rounds
    down, negative carries too.

    Args:
        thresholds: thresholds, rising, ``[N, C]`` int32.
        multiplier: of the carry.
        shift: bits that the product is shifted by.
        reset_amount: what one unit of reset takes from the membrane, ``[C]`` int32.
        reset: whether emission removes that once, once per level, never, or forgets everything.
        resets_after_decay: whether the reset escapes the decay of the next timestep (Eq. 1).
    """

    def __init__(
        self,
        thresholds: Tensor,
        *,
        multiplier: int,
        shift: int,
        reset_amount: Tensor,
        reset: NodeReset,
        resets_after_decay: bool = False,
    ) -> None:
        super().__init__(
            thresholds,
            decay=torch.tensor([multiplier / 2**shift], dtype=torch.float32),
            reset_amount=reset_amount,
            reset=reset,
            resets_after_decay=resets_after_decay,
        )
        self.multiplier, self.shift = multiplier, shift

    def integrate(self, carry: Tensor, current: Tensor) -> Tensor:
        """Decay the carry and add the current."""
        membrane = ((carry * self.multiplier) >> self.shift) + current
        if not self.resets_after_decay:
            return membrane
        reached = carry >= per_channel(self.thresholds[0], carry)
        return membrane - per_channel(self.reset_amount, carry) * reached


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value per channel to broadcast against ``[B, C, *space]``."""
    if values.numel() == 1:
        return values.reshape([1] * like.dim())
    if values.numel() != like.shape[1]:
        raise LevelError(
            f"{values.numel()} values for {like.shape[1]} channels (shape {tuple(like.shape)})"
        )
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


PoolKind = Literal["max", "sum"]
Multiply = Callable[["Weighted", Tensor], Tensor]
"""How a backend multiplies levels by weights, without bias."""

EXACT_FLOAT32 = 2**24
"""Integers below this are exact in float32."""


class Weighted(nn.Module):
    """Base of the nodes that turn levels into currents: a product with weights, and a bias.

    Args:
        weight: integers in an integer network.
        bias: None for none.
        max_input: largest size of what enters (levels or pixels); None if that is a real number.
        has_time: whether what enters has a time axis.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        max_input: int | None,
        has_time: bool = True,
    ) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.max_input, self.has_time = max_input, has_time

    @property
    def is_integer(self) -> bool:
        """Whether it computes in integers."""
        return not self.weight.is_floating_point()

    def forward(self, inputs: Tensor, multiply: Multiply | None = None) -> Tensor:
        """Return the currents of all timesteps; ``multiply`` replaces the dense product."""
        folded = merge_time(inputs) if self.has_time else inputs
        currents = self.multiply(folded) if multiply is None else multiply(self, folded)
        if self.bias is not None:
            is_map = self.bias.dim() == 3
            currents = currents + (self.bias if is_map else per_channel(self.bias, currents))
        return split_time(currents, like=inputs) if self.has_time else currents

    def multiply(self, inputs: Tensor) -> Tensor:
        """Multiply by the weights, without bias; exact in an integer network."""
        raise NotImplementedError


class Synapse(Weighted):
    """A convolution or a linear layer: levels in, currents out, at every timestep.

    Args:
        weight: ``[out, in / groups, kh, kw]`` or ``[out, in]``.
        bias: ``[out]``, or ``[out, H, W]`` where borders differ.
        max_input: as in :class:`Weighted`.
        has_time: as in :class:`Weighted`.
        stride: of a convolution, per axis.
        padding: zeros on both sides, per axis.
        dilation: distance of the taps, per axis.
        groups: number of channel groups.
        bits: that hold an integer weight; None for real weights.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        max_input: int | None,
        has_time: bool = True,
        stride: tuple[int, ...] = (1, 1),
        padding: tuple[int, ...] = (0, 0),
        dilation: tuple[int, ...] = (1, 1),
        groups: int = 1,
        bits: int | None = None,
    ) -> None:
        super().__init__(weight, bias, max_input=max_input, has_time=has_time)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups, self.bits = groups, bits

    @property
    def is_linear(self) -> bool:
        """Whether this is a linear layer, which flattens its input."""
        return self.weight.dim() == 2

    def with_numbers(
        self, weight: Tensor, bias: Tensor | None, *, max_input: int | None, bits: int | None = None
    ) -> "Synapse":
        """Return the same synapse with other weights."""
        return Synapse(
            weight,
            bias,
            max_input=max_input,
            has_time=self.has_time,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            bits=bits,
        )

    def multiply(self, inputs: Tensor) -> Tensor:
        """Multiply by the weights, without bias; exact in an integer network."""
        # autocast, TF32 and matmul precisions leave float64 alone; sums of 32 bits are exact in it
        dtype = torch.float64 if self.is_integer else self.weight.dtype
        weight, inputs = self.weight.to(dtype), inputs.to(dtype)
        if self.is_linear:
            product = F.linear(inputs.flatten(1), weight)
        else:
            product = F.conv2d(
                inputs, weight, None, self.stride, self.padding, self.dilation, self.groups
            )
        return product.to(torch.int32) if self.is_integer else product

    def extra_repr(self) -> str:
        """Show shape and range."""
        shape = "x".join(map(str, self.weight.shape))
        return (
            f"{shape} {str(self.weight.dtype).removeprefix('torch.')}, inputs to {self.max_input}"
        )


class Shortcut(Weighted):
    """An identity shortcut with one weight per channel, ``[C]`` or ``[1]``."""

    def multiply(self, inputs: Tensor) -> Tensor:
        """Multiply every channel by its weight."""
        dtype = torch.int32 if self.is_integer else self.weight.dtype
        return inputs.to(dtype) * per_channel(self.weight.to(dtype), inputs)


class Merge(nn.Module):
    """Adds currents."""

    def forward(self, *currents: Tensor) -> Tensor:
        """Add, from left to right."""
        total = currents[0]
        for current in currents[1:]:
            total = total + current
        return total


class Pool(nn.Module):
    """The largest level of every window, or the sum; divisors are absorbed behind it.

    Args:
        kind: "max" or "sum".
        kernel: size of the window.
        stride: step of the window.
        padding: positions added on both sides.
        has_time: whether what enters has a time axis.
    """

    def __init__(
        self,
        kind: PoolKind,
        *,
        kernel: tuple[int, int],
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
        has_time: bool = True,
    ) -> None:
        super().__init__()
        if kind not in ("max", "sum"):
            raise ParameterError(f'a pool takes the "max" or the "sum" of levels, got {kind!r}')
        self.kind: PoolKind = kind
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.has_time = has_time

    def forward(self, inputs: Tensor) -> Tensor:
        """Pool every timestep; levels stay small integers, sums become int32."""
        folded = merge_time(inputs) if self.has_time else inputs
        is_real, is_byte = folded.is_floating_point(), folded.dtype in (torch.uint8, torch.int8)
        exact = torch.float32 if is_byte and self.kind == "max" else torch.float64
        floats = folded if is_real else folded.to(exact)
        if self.kind == "max":
            pooled = F.max_pool2d(floats, self.kernel, self.stride, self.padding).to(inputs.dtype)
        else:
            pooled = F.avg_pool2d(
                floats, self.kernel, self.stride, self.padding, divisor_override=1
            )
            pooled = pooled if is_real else pooled.to(torch.int32)
        return split_time(pooled, like=inputs) if self.has_time else pooled

    def extra_repr(self) -> str:
        """Show kind and window."""
        return f"{self.kind} of {self.kernel}, stride={self.stride}, padding={self.padding}"


class Repeat(nn.Module):
    """Repeats the current of a static input at every timestep.

    Args:
        timesteps: how often (T).
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__()
        self.timesteps = timesteps

    def forward(self, current: Tensor) -> Tensor:
        """Repeat, without a copy."""
        carries = active_carries()
        if carries is not None:
            return carries.repeat(current)
        return current.unsqueeze(0).expand(self.timesteps, *[-1] * current.dim())

    def extra_repr(self) -> str:
        """Show the number of timesteps."""
        return f"timesteps={self.timesteps}"


class Readout(nn.Module):
    """The output: currents averaged over time, or in integers their sum.

    Args:
        over_time: "mean", "sum" (integers), or "none" to leave the sequence as it is.
    """

    def __init__(self, over_time: Literal["mean", "sum", "none"]) -> None:
        super().__init__()
        self.over_time = over_time

    def forward(self, currents: Tensor) -> Tensor:
        """Return ``[B, classes]``, or ``[T, B, classes]``."""
        if self.over_time == "mean":
            return currents.mean(0)
        return currents.sum(0, dtype=currents.dtype) if self.over_time == "sum" else currents

    def extra_repr(self) -> str:
        """Show the reduction over time."""
        return f"over_time={self.over_time}"


NODES = (Synapse, Shortcut, Merge, Pool, Repeat, LevelNeuron, IntegerNeuron, Readout)
"""Every node class of a lowered network."""
