"""What a report says about a run, as plain data: whoever measures it fills this in.

Counts and prices come from the other meter (:mod:`lbq.cost`), which this room does not know; they
arrive as numbers per image.
"""

from dataclasses import dataclass
from typing import Any

from lbq.analysis.layer_stats import LayerMembranes, LevelProfile, StepProfile
from lbq.train.metrics import Record


@dataclass(frozen=True, kw_only=True)
class EdgeCost:
    """Accumulations of one neuron's levels in one synapse, per image."""

    source: str
    target: str
    unary_acs: float
    bit_sparse_acs: float


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a network computes for one image, mean over those that were looked at."""

    num_images: int
    timesteps: int
    edges: tuple[EdgeCost, ...]
    unary_acs: float
    bit_sparse_acs: float
    explicit_shifts: float
    plane_formations: float
    fp_macs: float
    identity_acs: float
    """Additions of identity shortcuts, which the other accumulations leave out."""
    ann_macs: int
    """MACs of an ANN of the same shape."""
    notes: tuple[str, ...] = ()
    """What could not be followed or counted."""

    @property
    def saved(self) -> float:
        """Share of unary accumulations that sending bits saves."""
        return 1 - self.bit_sparse_acs / self.unary_acs if self.unary_acs else 0.0


@dataclass(frozen=True, kw_only=True)
class Price:
    """Energy per image under one convention: an ANN of the same shape, and this network."""

    group: str
    """ "arithmetic" or "memory traffic"."""
    name: str
    convention: str
    ann_mj: float
    burst_mj: float

    @property
    def ratio(self) -> float:
        """How many times the ANN costs."""
        return self.ann_mj / self.burst_mj if self.burst_mj else float("inf")


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run: what its folder says, and what was measured on its network."""

    name: str
    step: int | None
    """Training steps of the checkpoint that was looked at; None if only the record of a finished
    run is left."""
    metrics_log: tuple[Record, ...]
    recipe: dict[str, Any]
    """As a document."""
    provenance: dict[str, Any]
    """Code, commit, data and versions, as the checkpoint has them."""
    steps: StepProfile
    levels: LevelProfile | None = None
    membranes: tuple[LayerMembranes, ...] = ()
    costs: Costs | None = None
    prices: tuple[Price, ...] = ()
    prices_source: str = ""
    """Who published the prices."""
    notes: tuple[str, ...] = ()
    """What could not be measured, and why."""

    @property
    def evaluations(self) -> list[Record]:
        """The metrics log's evaluations on the test set, in order."""
        return [record for record in self.metrics_log if record.get("event") == "evaluation"]

    @property
    def training(self) -> list[Record]:
        """The metrics log's lines about training, in order."""
        return [record for record in self.metrics_log if record.get("event") == "train"]

    @property
    def last_evaluation(self) -> Record | None:
        """The last evaluation at or before the checkpoint that was looked at."""
        last = self.step
        before = [x for x in self.evaluations if last is None or x["step"] <= last]
        return before[-1] if before else None
