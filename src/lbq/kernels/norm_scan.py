"""Batch norm, an added shortcut and the multi-step neuron as one native operation.

One pass over memory instead of three. Only the currents before the norm are saved for the backward,
which recomputes the membranes. Supports channels last, from rest, on CPUs. Computes in float32,
with the statistics of ``nn.BatchNorm2d``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.kernels.native_scan import DTYPES, RESET_MODES, isa, split_coefficient_grads
from lbq.kernels.scan_interface import (
    ScanOptions,
    cache_signature,
    match_layout,
    note_step,
)

MAX_TIMESTEPS = 32
"""Timesteps whose membranes a kernel can hold in the backward."""


def can_run(currents: Tensor, shortcut: Tensor | None, step: Tensor) -> bool:
    """Return whether the fused kernels support ``[T, B, C, H, W]`` and its shortcut."""
    if isa() is None or currents.device.type != "cpu" or currents.dtype not in DTYPES:
        return False
    if currents.dim() != 5 or currents.numel() == 0 or len(currents) > MAX_TIMESTEPS:
        return False
    is_last = currents.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    fits = shortcut is None or shortcut.shape == currents.shape
    return is_last and fits and step.shape in ((1,), (currents.shape[2], 1, 1))


@cache_signature
class NormedBurstScan(torch.autograd.Function):
    """``apply(currents, shortcut, weight, bias, mean, variance, step, tail, decay, reset, ...)``.

    ``mean`` and ``variance`` None mean the statistics of the batch, with gradients. Coefficients
    are float32. Returns bursts, levels (or None), mean and biased variance.
    """

    @staticmethod
    def forward(
        currents: Tensor,
        shortcut: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor | None,
        variance: Tensor | None,
        step: Tensor,
        tail: Tensor | None,
        decay: Tensor,
        reset: Tensor,
        options: ScanOptions,
        eps: float,
        wants_levels: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Compute statistics, normalise, add, and compute the sequence."""
        del tail  # shapes the gradient only
        uses_batch_stats = mean is None or variance is None
        if mean is None or variance is None:
            mean, variance = step.new_empty(2, currents.shape[2]).unbind(0)
        else:  # an autograd function may not return its inputs
            mean, variance = mean.clone(), variance.clone()
        bursts = torch.empty_like(currents)
        levels = torch.empty_like(currents, dtype=torch.uint8) if wants_levels else None
        torch.ops.lbq.normed_forward.default(
            currents,
            match_layout(shortcut, currents),
            weight,
            bias,
            eps,
            uses_batch_stats,
            step,
            decay,
            reset,
            options.max_level,
            RESET_MODES[options.reset_mode],
            mean,
            variance,
            bursts,
            levels,
        )
        return bursts, levels, mean, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save the inputs and the statistics; nothing of the neuron."""
        currents, shortcut, weight, bias, mean, _, *tensors, options, eps, _ = inputs
        _, levels, used_mean, used_variance = output
        ctx.mark_non_differentiable(
            used_mean, used_variance, *(() if levels is None else (levels,))
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(currents, shortcut, weight, bias, used_mean, used_variance, *tensors)
        ctx.options, ctx.eps, ctx.uses_batch_stats = options, eps, mean is None
        note_step(ctx, tensors[0])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Recompute the membranes, then the gradients of neuron and norm."""
        grad_bursts = grads[0]
        if grad_bursts is None:
            return (None,) * 13
        currents, shortcut, *norm, step, tail, decay, reset = ctx.saved_tensors
        options: ScanOptions = ctx.options
        grad_currents = torch.empty_like(currents)
        grad_normed = grad_currents if shortcut is None else torch.empty_like(currents)
        grad_norm = step.new_empty(2, currents.shape[2])
        grad_step, grad_other = torch.empty_like(step), step.new_empty(3)
        torch.ops.lbq.normed_backward.default(
            match_layout(grad_bursts, currents),
            currents,
            match_layout(shortcut, currents),
            *norm,
            ctx.eps,
            ctx.uses_batch_stats,
            step,
            tail,
            decay,
            reset,
            options.max_level,
            RESET_MODES[options.reset_mode],
            options.lo,
            options.hi,
            options.detach_reset,
            options.detach_carry,
            grad_normed,
            grad_currents,
            grad_norm,
            grad_step,
            grad_other,
        )
        weight, bias = norm[:2]
        return (
            grad_currents,
            None if shortcut is None else grad_normed.to(shortcut.dtype),
            None if weight is None else grad_norm[0],
            None if bias is None else grad_norm[1],
            None,
            None,
            grad_step,
            *split_coefficient_grads(grad_other, ctx.needs_input_grad[7:10], tail, decay, reset),
            None,
            None,
            None,
        )
