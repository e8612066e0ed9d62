"""Statistics of steps, levels and membranes; figures and HTML reports.

``lbq.analysis.figures`` and ``lbq.analysis.report`` need the extra ``lbq[report]``.
"""

from lbq.analysis.layer_stats import (
    LayerLevels,
    LayerMembranes,
    LayerStep,
    LevelCounts,
    LevelProfile,
    MembraneCounts,
    StepProfile,
    read_steps,
)

__all__ = [
    "LayerLevels",
    "LayerMembranes",
    "LayerStep",
    "LevelCounts",
    "LevelProfile",
    "MembraneCounts",
    "StepProfile",
    "read_steps",
]
