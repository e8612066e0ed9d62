"""The multi-step neuron in native CPU code: the binding of ``native/``.

The kernels process all timesteps of a few values at a time, so that membranes stay in registers.
Only membranes are saved for the backward (4 bytes per neuron and timestep), or the currents.
Channels first and channels last both run without a copy. The kernels are registered with
``torch.library``, so compiled and exported programs can call them.
"""

import logging
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.kernels.scan_interface import (
    CompiledScan,
    Layout,
    ScanOptions,
    ScanOutput,
    cache_signature,
    layout_for,
    match_layout,
    require_layout,
)
from lbq.types import ResetMode

_log = logging.getLogger(__name__)

RESET_MODES = {mode: number for number, mode in enumerate(get_args(ResetMode))}
"""The numbers of the modes in ``lbq_reset_mode`` of ``lbq.h``."""
DTYPES = (torch.float32, torch.bfloat16)
OPERATORS = ("burst_forward", "burst_backward", "baseline_forward", "baseline_backward")
HOW_TO_BUILD = (
    "to build it, run `pip install .` in a copy of the repository, with torch and a C++ compiler "
    "installed"
)


@cache
def isa() -> str | None:
    """Load the native library; return its instruction set, or None and log the reason."""
    why = load_error()
    if why is None:
        return torch.ops.lbq.isa()
    _log.warning(
        "lbq's native library %s, so neurons on CPUs run on plain torch, several times slower; %s",
        why,
        HOW_TO_BUILD,
    )
    return None


@cache
def load_error() -> str | None:
    """Load the native library; return None, or why it cannot be used."""
    spec = util.find_spec("lbq._native")
    if spec is None or spec.origin is None:
        return "is not built"
    try:
        _check_length(Path(spec.origin))
        torch.ops.load_library(spec.origin)
        for name in OPERATORS:
            torch.library.register_fake(f"lbq::{name}", _fake_kernel)
        torch.ops.lbq.isa()
    except (OSError, ImportError, AttributeError, RuntimeError) as error:
        return f"({spec.origin}) does not load: {error.__cause__ or error}"
    return None


def _check_length(path: Path) -> None:
    """Raise OSError for a truncated ELF file: loading it would end the process."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) == 64 and header.startswith(b"\x7fELF\x02\x01"):  # 64 bits, little-endian
        start, each, count = (
            int.from_bytes(header[first:last], "little")
            for first, last in ((40, 48), (58, 60), (60, 62))  # the table of sections, at the end
        )
        size, expected = path.stat().st_size, start + each * count
        if size < expected:
            raise OSError(f"the file has {size} of {expected} bytes")


def _fake_kernel(*arguments: object) -> None:
    """Fake kernel for tracing: kernels only write to their arguments."""


def _is_built() -> bool:
    return isa() is not None


_is_built._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess] -- see scan.py


def can_run(
    currents: Tensor, step: Tensor, tail: Tensor | None, decay: Tensor, reset: Tensor | None
) -> bool:
    """Return whether the native kernels support these arguments."""
    if currents.device.type != "cpu" or not _is_built():
        return False
    coefficients = [c for c in (tail, decay, reset) if c is not None]
    return (
        currents.dtype in DTYPES
        and currents.numel() > 0
        and all(c.numel() == 1 for c in coefficients)
        and layout_for(currents, step) is not None
    )


@cache_signature
class NativeBurstScan(CompiledScan):
    """The scan in native code."""

    @staticmethod
    def forward(
        currents: Tensor,
        step: Tensor,
        tail: Tensor | None,
        decay: Tensor,
        reset: Tensor,
        carry: Tensor | None,
        options: ScanOptions,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Compute the sequence."""
        del tail  # shapes the gradient only
        saves = options.keep == "membranes"
        return _run(currents, step, decay, reset, carry, options, saves_membranes=saves)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients."""
        grad_bursts, _, grad_last_carry, _ = grads
        kept, step, tail, decay, reset, carry = ctx.saved_tensors
        options: ScanOptions = ctx.options
        layout = require_layout(kept, step)
        grad_currents = torch.empty_strided(kept.shape, layout.strides, dtype=ctx.dtype)
        if grad_bursts is None:
            grad_bursts = torch.zeros_like(grad_currents)
        has_state = carry is not None or grad_last_carry is not None
        state = torch.empty_like(kept[0], dtype=torch.float32) if has_state else kept
        grad_carry = None if carry is None else state
        grad_step, grad_other = torch.empty_like(step), step.new_empty(3)
        torch.ops.lbq.burst_backward.default(
            match_layout(grad_bursts, grad_currents),
            match_layout(grad_last_carry, state),
            kept,
            options.keep == "currents",
            step.contiguous(),
            tail,
            decay,
            reset,
            match_layout(carry, state),
            run_length(layout, step),
            options.max_level,
            RESET_MODES[options.reset_mode],
            options.lo,
            options.hi,
            options.detach_reset,
            options.detach_carry,
            grad_currents,
            grad_carry,
            grad_step,
            grad_other,
        )
        return (
            grad_currents,
            grad_step,
            *split_coefficient_grads(grad_other, ctx.needs_input_grad[2:5], tail, decay, reset),
            grad_carry,
            None,
        )


def split_coefficient_grads(
    grad_other: Tensor, wanted: tuple[bool, ...], *coefficients: Tensor | None
) -> list[Tensor | None]:
    """Return the gradients of tail, decay and reset that are needed, as views."""
    return [
        grad_other[i].reshape(coefficient.shape) if is_wanted and coefficient is not None else None
        for i, (is_wanted, coefficient) in enumerate(zip(wanted, coefficients, strict=True))
    ]


def run_length(layout: Layout, step: Tensor) -> int:
    """Return the run length of equal steps; 0 for one step, whatever the sizes."""
    return 0 if step.numel() == 1 else layout.run


def run_forward(
    currents: Tensor,
    step: Tensor,
    decay: Tensor,
    reset: Tensor,
    carry: Tensor | None,
    options: ScanOptions,
) -> ScanOutput:
    """Compute a sequence without gradients; nothing is saved."""
    bursts, levels, last_carry, _ = _run(
        currents, step, decay, reset, carry, options, saves_membranes=False
    )
    return ScanOutput(bursts, levels, last_carry)


def _run(
    currents: Tensor,
    step: Tensor,
    decay: Tensor,
    reset: Tensor,
    carry: Tensor | None,
    options: ScanOptions,
    *,
    saves_membranes: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Allocate in the currents' memory order and call the kernel."""
    layout = require_layout(currents, step)

    def sequence(dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(currents.shape, layout.strides, dtype=dtype)

    bursts, levels = sequence(currents.dtype), sequence(torch.uint8)
    saved = sequence(torch.float32) if saves_membranes else None
    last_carry = torch.empty_like(levels[0], dtype=torch.float32)
    torch.ops.lbq.burst_forward.default(
        currents,
        step.contiguous(),
        decay,
        reset,
        match_layout(carry, last_carry),
        run_length(layout, step),
        options.max_level,
        RESET_MODES[options.reset_mode],
        bursts,
        levels,
        saved,
        last_carry,
    )
    return bursts, levels, last_carry, saved
