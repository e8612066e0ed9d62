"""``burst_scan``: the multi-step neuron, and the choice of its implementation.

``reference_scan.py`` is the reference, a loop over the paper's equations. ``native_scan.py`` runs
on CPUs where it was built, ``triton_scan.py`` on GPUs, ``plain_scan.py`` on every other device and
dtype. The choice is made here; :func:`force_implementation` overrides it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from lbq.errors import ImplementationError, LevelError, ParameterError, ShapeError, TimeError
from lbq.kernels import baseline_scan as native_baselines
from lbq.kernels import triton_baseline_scan as triton_baselines
from lbq.kernels.baseline_scan import BaselineArguments
from lbq.kernels.native_scan import NativeBurstScan
from lbq.kernels.native_scan import can_run as native_can_run
from lbq.kernels.native_scan import run_forward as run_native_forward
from lbq.kernels.plain_scan import PlainBurstScan
from lbq.kernels.reference_scan import burst_scan_reference
from lbq.kernels.scan_interface import ScanOptions, ScanOutput, is_packing
from lbq.kernels.triton_scan import TritonBurstScan
from lbq.kernels.triton_scan import can_run as triton_can_run
from lbq.types import Bursts, Carry, Currents, Levels, Scalar, Step

Implementation = Literal["reference", "plain", "native", "triton"]

_NEEDS = {
    "native": "the built library, dense and not empty float32 "
    "or bfloat16 currents on a CPU, one step or one per channel, and one tail, decay and reset",
    "triton": "triton (pip install triton), dense and not empty float32, bfloat16 or float16 "
    "currents on a GPU, or on a CPU with TRITON_INTERPRET=1 in the environment, one step or one "
    "per channel, one tail, decay and reset, and no tracer at work",
}

_FUNCTIONS = {"plain": PlainBurstScan, "native": NativeBurstScan, "triton": TritonBurstScan}

_forced: ContextVar[Implementation | None] = ContextVar("forced", default=None)


@contextmanager
def force_implementation(name: Implementation) -> Generator[None]:
    """Run every neuron inside the block with this implementation; raise if it cannot.

    By default the fastest implementation that supports the arguments runs. The block affects this
    thread (or asyncio task) only. A backward runs in the implementation of its forward; a compiled
    function keeps the one it was traced with. The neurons of other papers have these too; their
    loop in plain torch is both their "reference" and their "plain".

    Args:
        name: "reference", "plain", "native" or "triton".
    """
    if name not in get_args(Implementation):
        names = ", ".join(map(repr, get_args(Implementation)))
        raise ParameterError(f"the implementation to force must be one of {names}, got {name!r}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def burst_scan(
    currents: Currents,
    step: Step,
    *,
    tail: Scalar | None,
    decay: Scalar,
    reset: Scalar,
    options: ScanOptions,
    carry: Carry | None = None,
) -> ScanOutput:
    """Compute bursts, levels and the last carry of a sequence of currents.

    Half-precision currents are computed in float32, since rounded membranes give different levels;
    the bursts have the currents' dtype. Differentiable once; ``torch.func.vmap`` is not supported.

    Args:
        currents: input of the neurons, ``[T, B, *n]``.
        step: spacing of the levels (gamma); all coefficients are one number, or broadcast
            against the neurons ``[*n]``.
        tail: strength of the surrogate's tails (lambda), or None for a box.
        decay: share of the carry that survives a timestep (beta).
        reset: share of a step that emission removes (alpha).
        options: settings without a gradient.
        carry: initial state; None for rest.
    """
    _check(currents, {"step": step, "tail": tail, "decay": decay, "reset": reset}, carry)
    dtype = torch.promote_types(currents.dtype, torch.float32)

    def coefficient(value: Scalar) -> Tensor:
        return torch.as_tensor(value, dtype=dtype, device=currents.device)

    coefficients = (
        step.to(dtype),
        None if tail is None else coefficient(tail),
        coefficient(decay),
        coefficient(reset),
    )
    start = None if carry is None else carry.to(dtype)
    name = _implementation(currents, *coefficients)
    if name == "reference":
        step, tail, decay, reset = coefficients
        out = burst_scan_reference(
            currents.to(dtype),
            step,
            tail=tail,
            decay=decay,
            reset=reset,
            carry=start,
            options=options,
        )
        return out._replace(bursts=out.bursts.to(currents.dtype))
    if name == "native" and not _wants_gradients(currents, *coefficients, start):
        return run_native_forward(currents, coefficients[0], *coefficients[2:], start, options)
    if is_packing() and options.keep == "membranes" and _are_smaller(currents):
        options = replace(options, keep="currents")
    scan = _FUNCTIONS[name]
    bursts, levels, last_carry, _ = scan.apply(currents, *coefficients, start, options)
    return ScanOutput(bursts, levels, last_carry)


def check_currents(currents: Tensor) -> None:
    """Raise unless these are the currents of a sequence, ``[T, B, *n]``."""
    if not currents.is_floating_point():
        raise LevelError(
            f"a neuron takes currents, real numbers, got {currents.dtype}; send bursts "
            f"(step * level) through the synapse in training, not integer levels"
        )
    if currents.dim() < 2:
        raise ShapeError(
            f"currents need a time and a batch axis, [T, B, *n], got shape "
            f"{tuple(currents.shape)}; use currents.unsqueeze(0) for a single timestep"
        )
    if len(currents) == 0:
        raise TimeError(
            f"a sequence needs at least one timestep, got currents of shape "
            f"{tuple(currents.shape)}; time is the first axis, [T, B, *n]"
        )


def check_carry(carry: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless the carry has this shape, or is None."""
    if carry is not None and carry.shape != shape:
        raise ShapeError(
            f"the carry has shape {tuple(carry.shape)}, but the currents need {tuple(shape)}; pass "
            f"the carry that the previous call of this stream returned"
        )


def baseline_scan(
    currents: Currents, carry: Carry | None, arguments: BaselineArguments
) -> tuple[Bursts, Levels, Carry] | None:
    """Compute a neuron of another paper in native code or in Triton; None if neither can.

    The rules are those of ``burst_scan``: exported programs use plain torch by default.
    """
    forced: Implementation | None = _forced_name()
    if forced in ("plain", "reference") or (forced is None and torch.compiler.is_exporting()):
        return None
    if forced != "triton" and native_baselines.can_run(currents, arguments):
        return native_baselines.run(currents, carry, arguments)
    is_interpreted = forced == "triton" and currents.device.type == "cpu"
    if forced != "native" and triton_baselines.can_run(
        currents, arguments, interpreted=is_interpreted
    ):
        return triton_baselines.run(currents, carry, arguments)
    if forced is None or arguments.options.neuron == "mixed":  # burst_scan behind its mixture
        return None
    raise ImplementationError(
        f'force_implementation("{forced}") needs {_NEEDS[forced]}; got the '
        f'"{arguments.options.neuron}" neuron with {currents.dtype} on {currents.device}, '
        f"shape {tuple(currents.shape)}, strides {currents.stride()}; "
        f'force "plain", which takes everything, or none'
    )


def _implementation(
    currents: Tensor, step: Tensor, tail: Tensor | None, decay: Tensor, reset: Tensor
) -> Implementation:
    """Return the forced implementation, or else the fastest that supports the arguments.

    Exported programs use plain torch by default, so that they run without lbq.
    """
    forced: Implementation | None = _forced_name()
    arguments = (currents, step, tail, decay, reset)
    if forced is None and torch.compiler.is_exporting():
        return "plain"
    if forced is None:
        if native_can_run(*arguments):
            return "native"
        return "triton" if triton_can_run(*arguments) else "plain"
    is_on_cpu = currents.device.type == "cpu"
    if (forced == "native" and not native_can_run(*arguments)) or (
        forced == "triton" and not triton_can_run(*arguments, interpreted=is_on_cpu)
    ):
        raise ImplementationError(
            f'force_implementation("{forced}") needs {_NEEDS[forced]}; got {currents.dtype} on '
            f"{currents.device}, shape {tuple(currents.shape)}, strides {currents.stride()}, a "
            f'step of shape {tuple(step.shape)}; force "plain", which takes everything, or none'
        )
    return forced


def _are_smaller(currents: Tensor) -> bool:
    """Whether currents take fewer bytes than their membranes: in half precision, or repeated."""
    return currents.element_size() < 4 or (len(currents) > 1 and currents.stride(0) == 0)


def _wants_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _forced_name() -> Implementation | None:
    return _forced.get()


# torch.compile cannot read a context variable, so the value at tracing time is a constant. This is
# torch.compiler.assume_constant_result without importing the compiler.
_forced_name._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def _check(currents: Tensor, coefficients: dict[str, Scalar | None], carry: Tensor | None) -> None:
    """Raise for wrong shapes and dtypes; values are not read, to avoid a synchronisation."""
    check_currents(currents)
    neurons = currents.shape[2:]
    for name, value in coefficients.items():
        if isinstance(value, Tensor) and not _fits(value.shape, neurons):
            raise ShapeError(
                f"the {name} has shape {tuple(value.shape)}, which does not fit neurons of shape "
                f"{tuple(neurons)} (the currents are {tuple(currents.shape)}); use one number, or "
                f"one per channel shaped [C, 1, 1]"
            )
    check_carry(carry, currents.shape[1:])


def _fits(shape: torch.Size, neurons: torch.Size) -> bool:
    """Return whether a coefficient broadcasts against the neurons."""
    if shape.numel() == 1 and len(shape) <= 1:
        return True
    try:
        return torch.broadcast_shapes(shape, neurons) == neurons
    except RuntimeError:
        return False
