"""The second meter: what a trained network does with its steps, levels and membranes.

``lbq.analysis.figures`` and ``lbq.analysis.report`` draw it and need the extra ``lbq[report]``.
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
