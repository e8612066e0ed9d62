"""Operations per level behind a synapse, and their energy (Eqs. 16-19).

Counts are exact 64-bit integers. ``fan_out`` is the exact number of synapses that leave a neuron
(docs/decisions/0006).
"""

import torch
from torch import Tensor

from lbq.functional.planes import MAX_LEVEL, as_integers, popcount
from lbq.types import FanOut, Level

MAC_PJ = 4.6
"""Energy of a float32 multiply-accumulate in 45 nm (the paper)."""
AC_PJ = 0.9
"""Energy of a float32 accumulate in 45 nm (the paper)."""
FORMATION_PJ = 0.1
"""Energy of a 32-bit integer add in 45 nm, used for forming one bit of a plane (the paper)."""


def unary_acs(level: Level, fan_out: FanOut) -> int:
    """Count accumulations if a level S is sent as S unit events (Eq. 16)."""
    return _weighted_sum(as_integers(level, max_level=MAX_LEVEL), fan_out)


def bit_sparse_acs(level: Level, fan_out: FanOut) -> int:
    """Count accumulations if only the non-zero bits of a level are sent (Eq. 17)."""
    return _weighted_sum(popcount(level), fan_out)


def plane_formations(level: Level) -> int:
    """Count the non-zero bits exposed before fan-out, however many synapses follow (Eq. 17)."""
    return int(popcount(level).sum(dtype=torch.int64))


def explicit_shifts(level: Level, fan_out: FanOut) -> int:
    """Count the shifts of a backend that scales by powers of two at run time (Eq. 18).

    The lowest plane needs none.
    """
    return _weighted_sum(popcount(as_integers(level, max_level=MAX_LEVEL) >> 1), fan_out)


def unit_event_acs(level: Level, fan_out: FanOut) -> int:
    """Count accumulations of binary or ternary events: one per non-zero level and synapse.

    Unnumbered in the paper. The sign of a ternary level selects add or subtract and costs nothing.
    """
    return _weighted_sum((level != 0).to(torch.uint8), fan_out)


def arithmetic_energy_pj(
    *,
    fp_macs: int | float,
    acs: int | float,
    plane_formations: int | float = 0,
    mac_pj: float = MAC_PJ,
    ac_pj: float = AC_PJ,
    formation_pj: float = FORMATION_PJ,
) -> float:
    """Estimate the energy of MACs, accumulates and plane formations (Eq. 19).

    Memory traffic, routing and neuron updates are not included.
    """
    return mac_pj * fp_macs + ac_pj * acs + formation_pj * plane_formations


def _weighted_sum(count: Level, fan_out: FanOut) -> int:
    weighted: Tensor = count.to(torch.int64) * fan_out
    return int(weighted.sum())
