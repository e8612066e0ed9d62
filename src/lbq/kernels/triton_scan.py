"""The multi-step neuron as Triton kernels for GPUs: the binding of ``triton_kernels.py``.

As on CPUs, membranes stay in registers between timesteps, only they are saved for the backward (4
bytes per neuron and timestep), and every dense layout runs without a copy. Sums are written per
tile and added by torch, so results are deterministic.

triton comes with the CUDA builds of torch and is imported when a neuron first runs on a GPU.
"""

import logging
from functools import cache
from importlib import util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.kernels.scan_interface import (
    CompiledScan,
    ScanOptions,
    cache_signature,
    layout_for,
    match_layout,
    require_layout,
)

_log = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TILE_VALUES = 1024
"""Values per program: eight for each of 128 threads, two loads of 16 bytes in float32."""
_LINE_VALUES = 32
"""Neighbouring channels in a tile of channels last: 128 bytes of float32, one cache line."""


@cache
def kernels() -> ModuleType | None:
    """Import the kernels; return None and log the reason where that is not possible."""
    if util.find_spec("triton") is None:
        why = "triton is not installed (it comes with the CUDA builds of torch: pip install triton)"
    else:
        from lbq.kernels import triton_kernels  # noqa: PLC0415 -- imports triton

        why = triton_kernels.driver_error()
        if why is None:
            return triton_kernels
    _log.warning("neurons on GPUs run on plain torch, since lbq's kernels cannot run: %s", why)
    return None


def can_run(
    currents: Tensor,
    step: Tensor,
    tail: Tensor | None,
    decay: Tensor,
    reset: Tensor,
    *,
    interpreted: bool = False,
) -> bool:
    """Return whether the GPU kernels support these arguments.

    With ``interpreted``, whether they support CPU tensors, if triton was imported with
    TRITON_INTERPRET=1 (for tests).
    """
    device = currents.device.type
    if torch.compiler.is_compiling() or device != ("cpu" if interpreted else "cuda"):
        return False
    found = kernels()
    if found is None or (interpreted and not found.IS_INTERPRETED):
        return False
    coefficients = [c for c in (tail, decay, reset) if c is not None]
    return (
        currents.dtype in _DTYPES
        and 0 < currents[0].numel() < 2**31  # the kernels count the values of an instant in int32
        and step.device == currents.device  # plain torch raises the clearer error
        and all(c.numel() == 1 for c in coefficients)
        and layout_for(currents, step) is not None
    )


@cache_signature
class TritonBurstScan(CompiledScan):
    """The scan in Triton."""

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
        strides = require_layout(currents, step).strides

        def sequence(dtype: torch.dtype) -> Tensor:
            return torch.empty_strided(currents.shape, strides, dtype=dtype, device=currents.device)

        bursts, levels = sequence(currents.dtype), sequence(torch.uint8)
        membranes = sequence(torch.float32)
        last_carry = torch.empty_like(membranes[0])
        tiling = tiling_of(currents, step)
        with torch.cuda.device_of(currents):  # triton launches on the current device
            known_kernels().burst_forward[tiling.grid](
                currents,
                step.contiguous(),
                decay,
                reset,
                match_layout(carry, last_carry),
                bursts,
                levels,
                membranes,
                last_carry,
                len(currents),
                currents.stride(0),
                currents[0].numel(),
                tiling.run,
                tiling.num_members,
                step.numel(),
                float(options.max_level),
                RESET_MODE=options.reset_mode,
                MEMBERS=tiling.members,
                CHANNELS=tiling.channels,
                enable_fp_fusion=False,
            )
        return bursts, levels, last_carry, membranes

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients."""
        grad_bursts, _, grad_last_carry, _ = grads
        membranes, step, tail, decay, reset, carry = ctx.saved_tensors
        options: ScanOptions = ctx.options
        grad_currents = torch.empty_like(membranes, dtype=ctx.dtype)
        if grad_bursts is None:
            grad_bursts = torch.zeros_like(grad_currents)
        grad_carry = None if carry is None else torch.empty_like(membranes[0])
        tiling = tiling_of(membranes, step)
        sums = step.new_empty(4, tiling.num_rows, step.numel())
        with torch.cuda.device_of(membranes):
            known_kernels().burst_backward[tiling.grid](
                match_layout(grad_bursts, grad_currents),
                match_layout(grad_last_carry, membranes[0]),
                membranes,
                step.contiguous(),
                tail,
                decay,
                reset,
                match_layout(carry, membranes[0]),
                grad_currents,
                grad_carry,
                sums,
                len(membranes),
                membranes[0].numel(),
                tiling.run,
                tiling.num_members,
                step.numel(),
                float(options.max_level),
                float(options.lo),
                float(options.hi),
                RESET_MODE=options.reset_mode,
                DETACH_RESET=options.detach_reset,
                DETACH_CARRY=options.detach_carry,
                MEMBERS=tiling.members,
                CHANNELS=tiling.channels,
            )
        return (grad_currents, *coefficient_grads(sums, step, tail, decay, reset), grad_carry, None)


def coefficient_grads(
    sums: Tensor, step: Tensor, tail: Tensor | None, decay: Tensor, reset: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of step, tail, decay and reset from the sums of all tiles."""
    totals = sums.sum(1, dtype=torch.float64)  # [4, num_steps]
    for_tail, for_decay, for_reset = totals[1:].sum(1).to(step.dtype).unbind(0)
    return (
        totals[0].to(step.dtype).reshape(step.shape),
        None if tail is None else for_tail.reshape(tail.shape),
        for_decay.reshape(decay.shape),
        None if reset is None else for_reset.reshape(reset.shape),
    )


class Tiling(NamedTuple):
    """Tiles of members times channels, one program each, of one timestep."""

    grid: tuple[int]
    num_rows: int
    run: int
    num_members: int
    members: int
    channels: int


def tiling_of(sequence: Tensor, step: Tensor, *, per_value: int = 1) -> Tiling:
    """Divide a timestep into tiles, with fewer values if each has several membranes."""
    tile_values = max(1, _TILE_VALUES // power_of_2(per_value))
    num_steps = step.numel()
    num_members = sequence[0].numel() // num_steps
    # with one step any run length is right, and triton removes a division by 1
    run = 1 if num_steps == 1 else require_layout(sequence, step).run
    if run == 1:  # neighbours in memory are channels
        channels = min(power_of_2(num_steps), _LINE_VALUES, tile_values)
        members = min(power_of_2(num_members), tile_values // channels)
    else:
        members = min(power_of_2(num_members), tile_values)
        channels = min(power_of_2(num_steps), tile_values // members)
    num_rows, num_columns = -(-num_members // members), -(-num_steps // channels)
    return Tiling((num_rows * num_columns,), num_rows, run, num_members, members, channels)


def power_of_2(number: int) -> int:
    """Round up to a power of two, as tile sizes must be."""
    return 1 << (number - 1).bit_length()


def known_kernels() -> ModuleType:
    """Return the kernels, after ``can_run`` found them."""
    found = kernels()
    assert found is not None  # checked by can_run
    return found
