"""The multi-step neuron in plain torch, with an analytic backward.

Forward, for t = 1 .. T, with r = U / step:

    U[t] = decay V[t-1] + x[t]          Eq. 7
    S[t] = clip(floor(r), 0, N)         Eq. 6
    y[t] = step S[t]                    Eq. 5
    V[t] = U[t] - reset step k[t]       Eq. 8, k = 1[S > 0] ("event"), S ("level") or 0 ("none")

Backward, for t = T .. 1, with g = dL/dy[t], v = dL/dV[t] and B the soft level of Eq. 9:

    dL/dU[t]    = g B'(r) + v
    dL/dx[t]    = dL/dU[t]
    dL/dV[t-1]  = decay dL/dU[t]
    dL/dstep    = sum of g (S - r B'(r)) - reset v k
    dL/dtail    = sum of step g dB/dtail
    dL/dreset   = sum of -step v k
    dL/ddecay   = sum of V[t-1] dL/dU[t]

Only U (in the compute dtype) and S (uint8) are saved; V is recomputed. In eager mode on a CPU the
batch is processed in slices that fit the cache; a compiled program uses one slice.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.functional.membrane import integrate, soft_reset, steps_removed
from lbq.functional.quantize import burst_level
from lbq.functional.surrogate import (
    plateau_position,
    soft_level_slope,
    step_slope,
    tail_slope,
)
from lbq.kernels.scan_interface import ScanOptions, cache_signature, note_step

_SLICE_ELEMENTS = 1 << 17
"""Neurons per slice: temporaries of 512 KiB in float32 stay in the L2 cache."""


@cache_signature
class PlainBurstScan(torch.autograd.Function):
    """``apply(currents, step, tail, decay, reset, carry, options)``.

    Returns bursts, levels, the last carry, and the membranes for the backward.
    """

    @staticmethod
    def forward(
        currents: Tensor,
        step: Tensor,
        tail: Tensor | None,
        decay: Tensor,
        reset: Tensor,
        carry: Tensor | None,
        options: ScanOptions,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the sequence."""
        del tail  # shapes the gradient only
        if torch.compiler.is_compiling():  # no preallocation, so that the compiler can fuse
            timesteps = _emissions(currents, carry, step, decay, reset, options)
            membranes, levels, states = zip(*timesteps, strict=True)
            bursts = torch.stack([step * level for level in levels]).to(currents.dtype)
            return bursts, torch.stack(levels).to(torch.uint8), states[-1], torch.stack(membranes)
        bursts = torch.empty_like(currents)
        levels = torch.empty_like(currents, dtype=torch.uint8)
        membranes = torch.empty_like(currents, dtype=step.dtype)
        last_carry = torch.empty_like(membranes[0])
        for part in _slices(currents):
            start = None if carry is None else carry[part]
            timesteps = _emissions(currents[:, part], start, step, decay, reset, options)
            for t, (membrane, level, state) in enumerate(timesteps):
                torch.mul(step, level, out=bursts[t, part])
                levels[t, part] = level
                membranes[t, part] = membrane
                if t + 1 == len(currents):
                    last_carry[part] = state
        return bursts, levels, last_carry, membranes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save membranes and levels; nothing else of their size."""
        currents, *tensors, options = inputs
        _, levels, _, membranes = output
        ctx.mark_non_differentiable(levels, membranes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(membranes, levels, *tensors)
        ctx.options, ctx.dtype = options, currents.dtype
        note_step(ctx, tensors[0])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients."""
        grad_bursts, _, grad_last_carry, _ = grads
        membranes, levels, step, tail, decay, reset, carry = ctx.saved_tensors
        options: ScanOptions = ctx.options
        if grad_bursts is None:
            grad_bursts = torch.zeros_like(membranes)
        if options.detach_carry:
            grad_last_carry = None
        sums = _CoefficientSums(step, tail, decay, reset, wanted=ctx.needs_input_grad[1:5])
        if torch.compiler.is_compiling():
            gradients = sums.backward(
                grad_bursts, grad_last_carry, membranes, levels, carry, options
            )
            grad_membranes = list(gradients)[::-1]
            grad_currents = torch.stack(grad_membranes).to(ctx.dtype)
            grad_carry = None if carry is None else decay * grad_membranes[0]
            return grad_currents, *sums.totals(options), grad_carry, None
        grad_currents = torch.empty_like(membranes, dtype=ctx.dtype)
        grad_carry = None if carry is None else torch.empty_like(carry)
        for part in _slices(membranes):
            gradients = sums.backward(
                grad_bursts[:, part],
                None if grad_last_carry is None else grad_last_carry[part],
                membranes[:, part],
                levels[:, part],
                None if carry is None else carry[part],
                options,
            )
            for t, grad_membrane in zip(reversed(range(len(membranes))), gradients, strict=True):
                grad_currents[t, part] = grad_membrane
                if t == 0 and grad_carry is not None:
                    grad_carry[part] = decay * grad_membrane
        return grad_currents, *sums.totals(options), grad_carry, None


class _CoefficientSums:
    """Gradients of the four coefficients, summed over the timesteps.

    Each sum has the joint shape of the coefficients in its term, which are applied at the end.
    """

    def __init__(
        self,
        step: Tensor,
        tail: Tensor | None,
        decay: Tensor,
        reset: Tensor,
        *,
        wanted: tuple[bool, bool, bool, bool],
    ) -> None:
        self.step, self.tail, self.decay, self.reset = step, tail, decay, reset
        self.wants_step, self.wants_tail, self.wants_decay, self.wants_reset = wanted
        zero = step.new_zeros(())
        self.level_term = zero.expand_as(step)  # sum of g (S - r B'(r))
        self.tail_term = zero if tail is None else zero * (step + tail)  # sum of g dB/dtail
        self.reset_term = zero * (step + reset)  # sum of v k
        self.decay_term = zero.expand_as(decay)  # sum of V[t-1] dL/dU[t]

    def backward(
        self,
        grad_bursts: Tensor,
        grad_state: Tensor | None,
        membranes: Tensor,
        levels: Tensor,
        carry: Tensor | None,
        options: ScanOptions,
    ) -> Iterator[Tensor]:
        """Yield dL/dU[t] for t = T .. 1 and add to the sums."""
        for t in reversed(range(len(membranes))):
            membrane, level = membranes[t], levels[t].to(self.step.dtype)
            grad_membrane = self._through_burst(
                grad_bursts[t].to(self.step.dtype), membrane, level, options
            )
            if grad_state is not None:
                grad_membrane += grad_state
                if self.wants_step or self.wants_reset:
                    removed = grad_state * steps_removed(level, mode=options.reset_mode)
                    self.reset_term = self.reset_term + removed.sum_to_size(self.reset_term.shape)
            if self.wants_decay:
                before = carry
                if t > 0:  # recompute V[t-1]
                    emitted = levels[t - 1].to(self.step.dtype)
                    before = soft_reset(
                        membranes[t - 1],
                        emitted,
                        step=self.step,
                        reset=self.reset,
                        mode=options.reset_mode,
                    )
                if before is not None:
                    kept = grad_membrane * before
                    self.decay_term = self.decay_term + kept.sum_to_size(self.decay_term.shape)
            yield grad_membrane
            grad_state = None if options.detach_carry else self.decay * grad_membrane

    def totals(self, options: ScanOptions) -> tuple[Tensor | None, ...]:
        """Return the gradients of step, tail, decay and reset; None where not needed."""
        step = self.level_term
        if not options.detach_reset:
            step = step - (self.reset * self.reset_term).sum_to_size(self.step.shape)
        tail = None
        if self.tail is not None and self.wants_tail:
            tail = (self.step * self.tail_term).sum_to_size(self.tail.shape)
        reset = -(self.step * self.reset_term).sum_to_size(self.reset.shape)
        return (
            step if self.wants_step else None,
            tail,
            self.decay_term if self.wants_decay else None,
            reset if self.wants_reset else None,
        )

    def _through_burst(
        self, grad: Tensor, membrane: Tensor, level: Tensor, options: ScanOptions
    ) -> Tensor:
        """Add the terms of the burst to the sums of step and tail; return its term of dL/dU[t]."""
        ratio = membrane / self.step
        side, fade = plateau_position(ratio, lo=options.lo, hi=options.hi)
        slope = soft_level_slope(side, fade, tail=self.tail)
        if self.wants_step:
            due = grad * step_slope(level, ratio, slope)
            self.level_term = self.level_term + due.sum_to_size(self.level_term.shape)
        if self.wants_tail:
            bent = grad * tail_slope(side, fade)
            self.tail_term = self.tail_term + bent.sum_to_size(self.tail_term.shape)
        return grad * slope


def _emissions(
    currents: Tensor,
    carry: Tensor | None,
    step: Tensor,
    decay: Tensor,
    reset: Tensor,
    options: ScanOptions,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield membrane, level and carry of every timestep."""
    for t in range(len(currents)):
        current = currents[t].to(step.dtype)
        membrane = current if carry is None else integrate(carry, current, decay=decay)
        level = burst_level(membrane, step, max_level=options.max_level)
        carry = soft_reset(membrane, level, step=step, reset=reset, mode=options.reset_mode)
        yield membrane, level, carry


def _slices(sequence: Tensor) -> list[slice]:
    """Split the batch of ``[T, B, *n]`` into parts that fit a CPU's cache."""
    batch = sequence.shape[1]
    if sequence.device.type != "cpu":
        return [slice(0, batch)]
    size = max(1, _SLICE_ELEMENTS * len(sequence) * batch // max(1, sequence.numel()))
    return [slice(i, min(i + size, batch)) for i in range(0, batch, size)]
