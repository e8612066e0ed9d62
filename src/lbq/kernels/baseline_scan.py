"""The neurons of other papers in native CPU code.

Each neuron is a compile-time variant of one scan. The kernels process all timesteps of a few values
at a time. Only the currents are saved for the backward, which recomputes the membranes. Channels
first and channels last both run without a copy.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.kernels.native_scan import RESET_MODES, run_length, split_coefficient_grads
from lbq.kernels.native_scan import can_run as native_can_run
from lbq.kernels.scan_interface import cache_signature, match_layout, require_layout
from lbq.types import Bursts, Carry, Currents, Levels, ResetMode

Baseline = Literal[
    "binary", "hard reset", "ternary", "original ternary", "integer", "multi-level", "mixed"
]
_NEURONS = {neuron: number for number, neuron in enumerate(get_args(Baseline))}
"""The numbers of the neurons in ``lbq_baseline`` of ``lbq.h``."""


@dataclass(frozen=True, kw_only=True)
class BaselineOptions:
    """Which neuron, and its settings without a gradient (``lbq_baseline`` in ``lbq.h``)."""

    neuron: Baseline
    """Its membrane, emission, reset and surrogate."""
    max_level: int = 1
    """The largest level."""
    lo: float = 0.0
    """Where the plateau of a ternary or mixed neuron begins, in steps."""
    hi: float = 0.0
    """Where it ends."""
    reset_mode: ResetMode = "event"
    """Whether the ternary neuron is reset."""
    sharpness: float = 0.0
    """How steep an arctangent is at its threshold."""

    @property
    def is_signed(self) -> bool:
        """Whether levels are int8 and not uint8."""
        return "ternary" in self.neuron

    @property
    def has_many(self) -> bool:
        """Whether there is one membrane per level; the carry then has them as its first axis."""
        return self.neuron == "multi-level"

    @property
    def num_membranes(self) -> int:
        """How many membranes a neuron has."""
        return self.max_level if self.has_many else 1


class BaselineArguments(NamedTuple):
    """Arguments of the kernels besides currents and carry; coefficients are one number each."""

    options: BaselineOptions
    step: Tensor
    """Scale of the levels, one number or one per channel."""
    decay: Tensor
    reset: Tensor | None = None
    """Reset of the binary neuron, without a gradient, and of the ternary neuron."""
    thresholds: Tensor | None = None
    """Thresholds of neurons whose step does not scale them; without a gradient."""
    mixture: Tensor | None = None
    """Shares of every timestep's current in every other's, for the mixed neuron, ``[T, T]``."""
    tail: Tensor | None = None
    """Tail of the ternary neuron's surrogate; None for a box."""


def can_run(currents: Tensor, arguments: BaselineArguments) -> bool:
    """Return whether the native kernels support these arguments."""
    _, step, decay, reset, _, _, tail = arguments
    return has_fixed_thresholds(arguments) and native_can_run(currents, step, tail, decay, reset)


def has_fixed_thresholds(arguments: BaselineArguments) -> bool:
    """Return whether the kernels compute every gradient that is wanted."""
    options, _, _, reset, thresholds, *_ = arguments
    constants = [thresholds] if options.neuron == "ternary" else [thresholds, reset]
    return not any(c is not None and c.requires_grad for c in constants)


def run(
    currents: Currents, carry: Carry | None, arguments: BaselineArguments
) -> tuple[Bursts, Levels, Carry]:
    """Compute the sequence; differentiable once."""
    options, step, decay, reset, thresholds, mixture, tail = arguments
    if mixture is not None:
        mixture = mixture.contiguous()
    if thresholds is not None:
        thresholds = thresholds.contiguous()
    return NativeBaselineScan.apply(
        currents, step, tail, decay, reset, thresholds, mixture, carry, options
    )


@cache_signature
class NativeBaselineScan(torch.autograd.Function):
    """``apply(currents, step, tail, decay, reset, thresholds, mixture, carry, options)``.

    Coefficients are float32. Returns bursts, levels and the last carry.
    """

    @staticmethod
    def forward(
        currents: Tensor,
        step: Tensor,
        tail: Tensor | None,
        decay: Tensor,
        reset: Tensor | None,
        thresholds: Tensor | None,
        mixture: Tensor | None,
        carry: Tensor | None,
        options: BaselineOptions,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Allocate in the currents' memory order and compute the sequence."""
        del tail  # shapes the gradient only
        layout = require_layout(currents, step)

        def sequence(dtype: torch.dtype) -> Tensor:
            return torch.empty_strided(currents.shape, layout.strides, dtype=dtype)

        bursts = sequence(currents.dtype)
        levels = sequence(torch.int8 if options.is_signed else torch.uint8)
        shape, strides = currents.shape[1:], layout.strides[1:]
        if options.has_many:
            shape, strides = (options.max_level, *shape), layout.strides
        last_carry = torch.empty_strided(shape, strides, dtype=torch.float32)
        torch.ops.lbq.baseline_forward.default(
            currents,
            step.contiguous(),
            decay,
            reset,
            thresholds,
            mixture,
            match_layout(carry, last_carry),
            run_length(layout, step),
            _NEURONS[options.neuron],
            options.max_level,
            RESET_MODES[options.reset_mode],
            bursts,
            levels,
            last_carry,
        )
        return bursts, levels, last_carry

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs; nothing else of their size."""
        *tensors, options = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.options = options

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Recompute the membranes, then the gradients."""
        grad_bursts, _, grad_last_carry = grads
        currents, step, tail, decay, reset, thresholds, mixture, carry = ctx.saved_tensors
        options: BaselineOptions = ctx.options
        layout = require_layout(currents, step)
        grad_currents = torch.empty_strided(currents.shape, layout.strides, dtype=currents.dtype)
        if grad_bursts is None:
            grad_bursts = torch.zeros_like(grad_currents)
        state = carry if grad_last_carry is None else grad_last_carry
        if state is not None:
            strides = layout.strides[-state.dim() :]
            state = torch.empty_strided(state.shape, strides, dtype=torch.float32)
            grad_last_carry, carry = (match_layout(t, state) for t in (grad_last_carry, carry))
        grad_carry = None if carry is None else state
        grad_step, grad_other = torch.empty_like(step), step.new_empty(3)
        grad_mixture = None if mixture is None else torch.empty_like(mixture)
        torch.ops.lbq.baseline_backward.default(
            match_layout(grad_bursts, grad_currents),
            grad_last_carry,
            currents,
            step.contiguous(),
            tail,
            decay,
            reset,
            thresholds,
            mixture,
            carry,
            run_length(layout, step),
            _NEURONS[options.neuron],
            options.max_level,
            RESET_MODES[options.reset_mode],
            options.lo,
            options.hi,
            options.sharpness,
            grad_currents,
            grad_carry,
            grad_step,
            grad_other,
            grad_mixture,
        )
        return (
            grad_currents,
            grad_step,
            *split_coefficient_grads(grad_other, ctx.needs_input_grad[2:5], tail, decay, reset),
            None,
            grad_mixture,
            grad_carry,
            None,
        )
