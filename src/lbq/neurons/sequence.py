"""Running a neuron instant by instant: the loop that the relatives of the burst neuron share."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lbq.kernels.scan import check_currents
from lbq.types import Bursts, Carry, Currents, Levels


class TimestepOutput(NamedTuple):
    """What one timestep of a neuron gives."""

    burst: Tensor
    level: Tensor
    carry: Tensor


def scan_over_time(
    instant: Callable[[Tensor, Tensor], TimestepOutput],
    currents: Currents,
    carry: Carry | None,
    *,
    rest: Tensor | None = None,
    level_dtype: torch.dtype = torch.uint8,
) -> tuple[Bursts, Levels, Carry]:
    """Call ``instant(carry, current)`` for every timestep and stack what it gives.

    Half-precision currents are computed in float32, as in :func:`lbq.kernels.burst_scan`.

    Args:
        instant: one timestep of the neuron.
        currents: the sequence.
        carry: the state to start from; None is rest.
        rest: the carry at rest; zeros like one instant of the currents unless said.
        level_dtype: how the levels are stored.
    """
    check_currents(currents)
    exact = currents.to(torch.promote_types(currents.dtype, torch.float32))
    if carry is None:
        carry = torch.zeros_like(exact[0]) if rest is None else rest
    bursts: list[Tensor] = []
    levels: list[Tensor] = []
    for current in exact.unbind(0):
        burst, level, carry = instant(carry, current)
        bursts.append(burst)
        levels.append(level.detach().to(level_dtype))
    return torch.stack(bursts).to(currents.dtype), torch.stack(levels), carry
