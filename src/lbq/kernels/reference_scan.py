"""The reference of the multi-step neuron: a differentiable loop over the equations.

All other implementations are tested against it, forward bit for bit, backward against autograd.
"""

import torch
from torch import Tensor

from lbq.functional.membrane import integrate, soft_reset
from lbq.functional.quantize import burst_level
from lbq.functional.surrogate import soft_level, straight_through
from lbq.kernels.scan_interface import ScanOptions, ScanOutput
from lbq.types import Carry, Currents, Scalar, Step


def burst_scan_reference(
    currents: Currents,
    step: Step,
    *,
    tail: Scalar | None,
    decay: Scalar,
    reset: Scalar,
    carry: Carry | None,
    options: ScanOptions,
) -> ScanOutput:
    """Integrate, emit and reset, one timestep after the other."""
    bursts: list[Tensor] = []
    levels: list[Tensor] = []
    for current in currents.unbind(0):
        membrane = current if carry is None else integrate(carry, current, decay=decay)
        level = burst_level(membrane, step, max_level=options.max_level)
        soft = soft_level(membrane / step, lo=options.lo, hi=options.hi, tail=tail)
        bursts.append(straight_through(level, soft, step))
        levels.append(level.to(torch.uint8))
        carry = soft_reset(
            membrane,
            level,
            step=step.detach() if options.detach_reset else step,
            reset=reset,
            mode=options.reset_mode,
        )
        if options.detach_carry:
            carry = carry.detach()
    assert carry is not None  # burst_scan raises for a sequence without timesteps
    return ScanOutput(torch.stack(bursts), torch.stack(levels), carry)
