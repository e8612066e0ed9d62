"""``burst_scan``: the whole multi-step neuron as one operation, the door to its implementations.

``reference.py`` is the truth, a loop over the paper's equations. ``native.py`` runs on CPUs where
it was built, ``plain.py`` everywhere else: on any device and dtype that torch knows. Which one runs
is decided here and nowhere else.
"""

import torch
from torch import Tensor

from lbq.errors import LevelError, ShapeError, TimeError
from lbq.kernels.native import NativeBurstScan
from lbq.kernels.native import can_run as native_can_run
from lbq.kernels.plain import PlainBurstScan
from lbq.kernels.signature import ScanOptions, ScanOutput
from lbq.types import Carry, Currents, Scalar, Step


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
    """Map the currents of a sequence to its bursts, its levels and the state it ends in.

    Half-precision currents are computed in float32 (a rounded membrane lands on other levels) and
    the bursts come back in the currents' dtype. It can be differentiated once; ``torch.func.vmap``
    is not supported.

    Args:
        currents: what arrives at the neurons, ``[T, B, *n]``.
        step: spacing of the levels (gamma); like all coefficients one number, or broadcasting
            against the neurons ``[*n]``.
        tail: strength of the surrogate's tails (lambda), or None for a box.
        decay: share of the carry that survives a timestep (beta).
        reset: share of a step that emission removes (alpha).
        options: the choices without a gradient.
        carry: the state to start from; None is rest.
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
    scan = NativeBurstScan if native_can_run(currents, *coefficients) else PlainBurstScan
    start = None if carry is None else carry.to(dtype)
    bursts, levels, last_carry, _ = scan.apply(currents, *coefficients, start, options)
    return ScanOutput(bursts, levels, last_carry)


def check_currents(currents: Tensor) -> None:
    """Complain unless these can be the currents of a sequence, ``[T, B, *n]``."""
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


def _check(currents: Tensor, coefficients: dict[str, Scalar | None], carry: Tensor | None) -> None:
    """Complain about what could only give nonsense; values are not looked at, so nothing waits."""
    check_currents(currents)
    neurons = currents.shape[2:]
    for name, value in coefficients.items():
        if isinstance(value, Tensor) and not _fits(value.shape, neurons):
            raise ShapeError(
                f"the {name} has shape {tuple(value.shape)}, which does not fit neurons of shape "
                f"{tuple(neurons)} (the currents are {tuple(currents.shape)}); use one number, or "
                f"one per channel shaped [C, 1, 1]"
            )
    if carry is not None and carry.shape != currents.shape[1:]:
        raise ShapeError(
            f"the carry has shape {tuple(carry.shape)}, but the currents need "
            f"{tuple(currents.shape[1:])}; pass the carry that the previous call of this stream "
            f"returned"
        )


def _fits(shape: torch.Size, neurons: torch.Size) -> bool:
    """Say whether a coefficient broadcasts against the neurons: one number always does."""
    if shape.numel() == 1 and len(shape) <= 1:
        return True
    try:
        return torch.broadcast_shapes(shape, neurons) == neurons
    except RuntimeError:
        return False
