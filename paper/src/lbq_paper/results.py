"""The measurements, entry by entry: accuracies and counts with their number, mean and spread."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lbq.config_io import Document
from lbq.functional.op_costs import arithmetic_energy_pj
from lbq_paper.experiments import (
    Experiment,
    Size,
    Table,
    full_size_experiments,
    pocket_experiments,
    table_of,
)
from lbq_paper.records import Record, read_records

SIZES: dict[Size, str] = {"full": "full size", "pocket": "pocket"}
"""Names of the columns of the two sizes."""
NO_EXPERIMENT = "no experiment"
NOT_RUN = "not run"
DIVERGED = "diverged"
NOTHING = "-"
"""Stands for a number that a network does not have."""
OLDER = "*"
"""Marks numbers that were computed by other code than the present one."""

Value = Callable[[Record], float | None]
"""Reads one number off a record; None where it has none."""


@dataclass(frozen=True)
class Spread:
    """How much a number varies from seed to seed, pooled over networks."""

    deviation: float
    freedom: int
    """Degrees of freedom: runs less networks."""


@dataclass(frozen=True)
class Results:
    """The records of all experiments, found by size and entry.

    Args:
        experiments: all experiments.
        records: those that were run, by size and by the key of the recipe.
        marks_older: whether numbers of other code than the present one are marked.
    """

    experiments: Sequence[Experiment]
    records: dict[Size, dict[str, list[Record]]]
    marks_older: bool = True

    def at(self, entry: str, size: Size) -> list[Record]:
        """Return one record for every seed that was run at an entry, in the order of seeds."""
        found = [
            self.records[size][experiment.key][0]
            for experiment in self.experiments
            if experiment.size == size
            and entry in experiment.entries
            and experiment.key in self.records[size]
        ]
        return sorted(found, key=lambda record: record.seed)

    def entries(self, table: Table) -> list[str]:
        """List the entries of a table that some experiment fills, in their order."""
        every = dict.fromkeys(
            entry for experiment in self.experiments for entry in experiment.entries
        )
        return [entry for entry in every if table_of(entry) == table]

    def shown(self, entry: str, size: Size, value: Value, *, digits: int = 2) -> str:
        """Write the measurements at an entry: mean, spread and number of runs."""
        if not any(
            experiment.size == size and entry in experiment.entries
            for experiment in self.experiments
        ):
            return NO_EXPERIMENT
        records = self.at(entry, size)
        if not records:
            return NOT_RUN
        is_older = self.marks_older and not all(record.is_current for record in records)
        num_diverged = sum(record.is_diverged for record in records)
        values = known(records, value)
        if not values:
            words = DIVERGED if num_diverged else NOTHING
        else:
            words = shown(values, digits=digits)
            words += f", {num_diverged} {DIVERGED}" if num_diverged else ""
        return words + (OLDER if is_older else "")

    def paired(self, entry: str, reference: str, size: Size, value: Value) -> str:
        """Write the differences to another entry over the seeds that both were run with."""
        if entry == reference:
            return "-"
        differences = self.differences(entry, reference, size, value)
        return shown(differences, digits=2, sign="+") if differences else "-"

    def spread(self, size: Size, value: Value) -> Spread:
        """Pool the spread over seeds of every network that was run with several."""
        entries = dict.fromkeys(
            entry for experiment in self.experiments for entry in experiment.entries
        )
        groups = {
            tuple(record.path for record in records): known(records, value)
            for records in (self.at(entry, size) for entry in entries)
        }
        several = [values for values in groups.values() if len(values) > 1]
        freedom = sum(len(values) - 1 for values in several)
        squares = sum((len(values) - 1) * statistics.variance(values) for values in several)
        return Spread(math.sqrt(squares / max(1, freedom)), freedom)

    def differences(self, entry: str, reference: str, size: Size, value: Value) -> list[float]:
        """Subtract the value at another entry, seed by seed, where both were run with it."""
        there = {record.seed: value(record) for record in self.at(reference, size)}
        return [
            mine - theirs
            for record in self.at(entry, size)
            if (mine := value(record)) is not None
            and (theirs := there.get(record.seed)) is not None
        ]


def open_results(folder: Path) -> Results:
    """Read the records under ``folder/full`` and ``folder/pocket``, and nothing else."""
    return Results(
        experiments=(*full_size_experiments(), *pocket_experiments()),
        records={
            "full": read_records(folder / "full"),
            "pocket": read_records(folder / "pocket"),
        },
    )


def known(records: Iterable[Record], value: Value) -> list[float]:
    """Read a number off all records that have it."""
    return [found for record in records if (found := value(record)) is not None]


def shown(values: Iterable[float], *, digits: int, sign: str = "") -> str:
    """Write values as mean, sample standard deviation and number."""
    values = list(values)
    mean, form = statistics.fmean(values), f".{digits}f"
    if len(values) == 1:
        return f"{mean:{sign}{form}} (n=1)"
    return f"{mean:{sign}{form}} +- {statistics.stdev(values):{form}} (n={len(values)})"


def accuracy(record: Record) -> float | None:
    """Percent of correct answers of the network after the last epoch."""
    return record.accuracy


def millions(name: str) -> Value:
    """Read a count off records: millions per image."""

    def value(record: Record) -> float | None:
        counts = record.body.get("counts", {})
        return counts[name] / counts["num_images"] / 1e6 if name in counts else None

    return value


def reduction(record: Record) -> float | None:
    """Percent of the unary accumulations that bit-sparse ones save."""
    counts = record.body.get("counts", {})
    if not counts.get("unary_acs"):
        return None
    return 100 * (1 - counts["bit_sparse_acs"] / counts["unary_acs"])


def energy_mj(record: Record) -> float | None:
    """Price the counts like the paper: float32 MACs and adds at 45 nm, per image.

    By the paper's convention, MACs include padded positions and accumulations do not.
    """
    counts = record.body.get("counts")
    return None if counts is None else _price_mj(counts)


def energy_ratio(record: Record) -> float | None:
    """Divide the energy of the same network as an ANN by this energy, at the paper's prices."""
    counts = record.body.get("counts")
    if counts is None or "bit_sparse_acs" not in counts:
        return None
    ann_mj = arithmetic_energy_pj(fp_macs=counts["ann_macs"], acs=0) / 1e9
    return ann_mj / _price_mj(counts)


def _price_mj(counts: Document) -> float:
    picojoules = arithmetic_energy_pj(
        fp_macs=counts["fp_macs"],
        acs=counts.get("bit_sparse_acs", 0),
        plane_formations=counts.get("plane_formations", 0),
    )
    return picojoules / counts["num_images"] / 1e9
