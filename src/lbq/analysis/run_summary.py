"""The data of a run that a report shows."""

from dataclasses import dataclass
from typing import Any

from lbq.analysis.attention_maps import AttentionMaps
from lbq.analysis.layer_stats import LayerMembranes, LevelProfile, StepProfile
from lbq.cost.count_table import CountTable
from lbq.cost.energy import EnergyReport
from lbq.train.metrics import Record


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run: the contents of its folder, and the measurements of its network."""

    name: str
    step: int | None
    """Training steps of the checkpoint; None if only the record of a finished run exists."""
    metrics_log: tuple[Record, ...]
    recipe: dict[str, Any]
    """As a document; for a run of :func:`lbq.fit` only its training settings."""
    provenance: dict[str, Any]
    """Code, commit, data and versions, as in the checkpoint."""
    steps: StepProfile
    levels: LevelProfile | None = None
    membranes: tuple[LayerMembranes, ...] = ()
    counts: CountTable | None = None
    energy: EnergyReport | None = None
    attention: AttentionMaps | None = None
    notes: tuple[str, ...] = ()
    """Measurements that could not be made, and why."""

    @property
    def evaluations(self) -> list[Record]:
        """The metrics log's evaluations on the test set, in order."""
        return [record for record in self.metrics_log if record.get("event") == "evaluation"]

    @property
    def training(self) -> list[Record]:
        """The metrics log's lines about training, in order."""
        return [record for record in self.metrics_log if record.get("event") == "train"]

    @property
    def timesteps(self) -> int | None:
        """Timesteps of the network, from the recipe or the counts."""
        if "model" in self.recipe:
            return self.recipe["model"]["timesteps"]
        return None if self.counts is None else self.counts.timesteps

    @property
    def last_evaluation(self) -> Record | None:
        """The last evaluation at or before the checkpoint."""
        last = self.step
        before = [x for x in self.evaluations if last is None or x["step"] <= last]
        return before[-1] if before else None
