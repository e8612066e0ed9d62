"""The paper's equations as pure functions; docs/equations.md is the index."""

from lbq.functional.membrane import integrate, lif_membrane, soft_reset, steps_removed
from lbq.functional.op_costs import (
    arithmetic_energy_pj,
    bit_sparse_acs,
    explicit_shifts,
    plane_formations,
    unary_acs,
    unit_event_acs,
)
from lbq.functional.planes import (
    absorb_step,
    bit_sparse_product,
    from_planes,
    num_planes,
    popcount,
    popcount_wide,
    to_planes,
)
from lbq.functional.quantize import (
    binary_spike,
    burst,
    burst_level,
    count_thresholds,
    fixed_burst_level,
    level_thresholds,
    ternary_level,
)
from lbq.functional.surrogate import (
    arctan_soft_spike,
    plateau_position,
    soft_level,
    soft_level_slope,
    step_slope,
    straight_through,
    tail_slope,
)

__all__ = [
    "absorb_step",
    "arctan_soft_spike",
    "arithmetic_energy_pj",
    "binary_spike",
    "bit_sparse_acs",
    "bit_sparse_product",
    "burst",
    "burst_level",
    "count_thresholds",
    "explicit_shifts",
    "fixed_burst_level",
    "from_planes",
    "integrate",
    "level_thresholds",
    "lif_membrane",
    "num_planes",
    "plane_formations",
    "plateau_position",
    "popcount",
    "popcount_wide",
    "soft_level",
    "soft_level_slope",
    "soft_reset",
    "step_slope",
    "steps_removed",
    "straight_through",
    "tail_slope",
    "ternary_level",
    "to_planes",
    "unary_acs",
    "unit_event_acs",
]
