"""The neurons of other papers on GPUs: binds ``baseline_*`` of ``triton_kernels.py``.

Membranes are saved for the backward: a program cannot hold those of all timesteps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.kernels.baseline_scan import BaselineArguments, BaselineOptions, has_fixed_thresholds
from lbq.kernels.scan_interface import cache_signature, match_layout, require_layout
from lbq.kernels.triton_scan import can_run as triton_can_run
from lbq.kernels.triton_scan import coefficient_grads, known_kernels, power_of_2, tiling_of
from lbq.types import Bursts, Carry, Currents, Levels


def can_run(currents: Tensor, arguments: BaselineArguments, *, interpreted: bool = False) -> bool:
    """Return whether the GPU kernels support these arguments, like ``triton_scan.can_run``."""
    options, step, decay, reset, _, _, tail = arguments
    return (
        options.neuron != "mixed"  # burst_scan behind its mixture
        and has_fixed_thresholds(arguments)
        and triton_can_run(
            currents, step, tail, decay, decay if reset is None else reset, interpreted=interpreted
        )
    )


def run(
    currents: Currents, carry: Carry | None, arguments: BaselineArguments
) -> tuple[Bursts, Levels, Carry]:
    """Compute the sequence; differentiable once."""
    options, step, decay, reset, thresholds, _, tail = arguments
    if thresholds is not None:
        thresholds = thresholds.contiguous()
    bursts, levels, last_carry, _ = TritonBaselineScan.apply(
        currents, step, tail, decay, reset, thresholds, carry, options
    )
    return bursts, levels, last_carry


@cache_signature
class TritonBaselineScan(torch.autograd.Function):
    """``apply(currents, step, tail, decay, reset, thresholds, carry, options)``.

    Returns bursts, levels, the last carry, and the membranes ``[T, num_membranes, B, *n]``.
    """

    @staticmethod
    def forward(
        currents: Tensor,
        step: Tensor,
        tail: Tensor | None,
        decay: Tensor,
        reset: Tensor | None,
        thresholds: Tensor | None,
        carry: Tensor | None,
        options: BaselineOptions,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the sequence."""
        del tail  # shapes the gradient only
        strides = require_layout(currents, step).strides
        size, count = currents[0].numel(), options.num_membranes

        def sequence(dtype: torch.dtype) -> Tensor:
            return torch.empty_strided(currents.shape, strides, dtype=dtype, device=currents.device)

        bursts = sequence(currents.dtype)
        levels = sequence(torch.int8 if options.is_signed else torch.uint8)
        membranes = torch.empty_strided(
            (len(currents), count, *currents.shape[1:]),
            (count * size, size, *strides[1:]),
            dtype=torch.float32,
            device=currents.device,
        )
        last_carry = torch.empty_like(membranes[0] if options.has_many else membranes[0, 0])
        tiling = tiling_of(currents, step, per_value=count)
        with torch.cuda.device_of(currents):  # triton launches on the current device
            known_kernels().baseline_forward[tiling.grid](
                currents,
                step.contiguous(),
                decay,
                reset,
                thresholds,
                match_layout(carry, last_carry),
                bursts,
                levels,
                membranes,
                last_carry,
                len(currents),
                currents.stride(0),
                size,
                tiling.run,
                tiling.num_members,
                step.numel(),
                count,
                float(options.max_level),
                NEURON=options.neuron,
                RESETS=options.reset_mode != "none",
                MEMBRANES=power_of_2(count),
                MEMBERS=tiling.members,
                CHANNELS=tiling.channels,
                enable_fp_fusion=False,
            )
        return bursts, levels, last_carry, membranes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the membranes in place of the currents."""
        currents, *tensors, options = inputs
        _, levels, _, membranes = output
        ctx.mark_non_differentiable(levels, membranes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(membranes, *tensors)
        ctx.options, ctx.dtype = options, currents.dtype

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients."""
        grad_bursts, _, grad_last_carry, _ = grads
        membranes, step, tail, decay, reset, thresholds, carry = ctx.saved_tensors
        options: BaselineOptions = ctx.options
        instant = membranes[0, 0]
        grad_currents = torch.empty_strided(
            (len(membranes), *instant.shape),
            (instant.numel(), *instant.stride()),
            dtype=ctx.dtype,
            device=membranes.device,
        )
        if grad_bursts is None:
            grad_bursts = torch.zeros_like(grad_currents)
        state = membranes[0] if options.has_many else instant
        grad_carry = None if carry is None else torch.empty_like(state)
        tiling = tiling_of(grad_currents, step, per_value=options.num_membranes)
        sums = step.new_empty(4, tiling.num_rows, step.numel())
        with torch.cuda.device_of(membranes):
            known_kernels().baseline_backward[tiling.grid](
                match_layout(grad_bursts, grad_currents),
                match_layout(grad_last_carry, state),
                membranes,
                step.contiguous(),
                tail,
                decay,
                reset,
                thresholds,
                match_layout(carry, state),
                grad_currents,
                grad_carry,
                sums,
                len(membranes),
                instant.numel(),
                tiling.run,
                tiling.num_members,
                step.numel(),
                options.num_membranes,
                float(options.max_level),
                float(options.lo),
                float(options.hi),
                float(options.sharpness),
                NEURON=options.neuron,
                RESETS=options.reset_mode != "none",
                MEMBRANES=power_of_2(options.num_membranes),
                MEMBERS=tiling.members,
                CHANNELS=tiling.channels,
            )
        grads = coefficient_grads(sums, step, tail, decay, reset)
        return (grad_currents, *grads, None, grad_carry, None)
