"""Records: the result of an experiment as a JSON file; tables are made from these."""

from dataclasses import dataclass
from pathlib import Path

from lbq.adapters.run_record import record_run, run_history
from lbq.atomic_files import atomic_write
from lbq.config_io import Document, dump_json, read_json
from lbq.errors import FormatError, LBQError
from lbq.train.provenance import git_commit
from lbq.train.recipe import recipe_from_document
from lbq_paper.experiments import Experiment, numerics_digest, published, recipe_key

FORMAT = "lbq-experiment-2"


@dataclass(frozen=True)
class Record:
    """The record of an experiment."""

    path: Path
    body: Document

    @property
    def is_current(self) -> bool:
        """Whether it was computed by the present code."""
        return self.body["numerics_sha256"] == numerics_digest()

    @property
    def is_diverged(self) -> bool:
        """Whether training ended in non-finite numbers."""
        return "diverged" in self.body

    @property
    def accuracy(self) -> float | None:
        """Percent of right answers after the last epoch; None if training diverged.

        It comes from the uncompiled forward that was counted, so it can differ from the evaluation
        of compiled training by some levels at their thresholds.
        """
        found = self.body.get("measured_correct")
        return None if found is None else 100 * found / self.body["counts"]["num_images"]

    @property
    def seed(self) -> int:
        """The seed of its recipe."""
        return self.body["recipe"]["seed"]


def record_path(out: Path, experiment: Experiment) -> Path:
    """Return the path of the record of an experiment."""
    return out / f"{experiment.id}.json"


def write_record(out: Path, experiment: Experiment, run: Path, measured: Document) -> Path:
    """Write the results of a finished run and its measurement."""
    body = {**record_run(run), **measured, "measured_commit": git_commit()}
    return _write(out, experiment, body)


def write_failure(out: Path, experiment: Experiment, run: Path, reason: str) -> Path:
    """Write that training diverged."""
    return _write(out, experiment, {"diverged": reason, **run_history(run)})


def read_records(folder: Path) -> dict[str, list[Record]]:
    """Read every record of a folder, by the key of its recipe; those of the present code first."""
    found: dict[str, list[Record]] = {}
    for path in sorted(folder.glob("*.json")):
        record = Record(path, read_json(path, expected_format=FORMAT))
        try:
            recipe = recipe_from_document(record.body["recipe"])
        except LBQError as error:
            raise FormatError(f"{path} holds no recipe that can be read: {error}") from error
        found.setdefault(recipe_key(recipe), []).append(record)
    for records in found.values():
        records.sort(key=lambda record: not record.is_current)
    return found


def _write(out: Path, experiment: Experiment, body: Document) -> Path:
    head = {
        "format": FORMAT,
        "id": experiment.id,
        "size": experiment.size,
        "method": experiment.method,
        "entries": list(experiment.entries),
        "numerics_sha256": numerics_digest(),
    }
    whole = {**head, **body, "recipe": published(experiment.recipe)}
    out.mkdir(parents=True, exist_ok=True)
    path = record_path(out, experiment)
    atomic_write(path, dump_json(whole).encode())
    return path
