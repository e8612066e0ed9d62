"""Records: the result of an experiment as a JSON file; tables are made from these."""

import os
import platform
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lbq.atomic_files import atomic_write
from lbq.config_io import Document, dump_json, read_json
from lbq.errors import FormatError, LBQError
from lbq.kernels.native_scan import isa
from lbq.train import read_metrics_log
from lbq.train.provenance import git_commit
from lbq.train.recipe import recipe_from_document
from lbq.train.run_folder import RunFolder
from lbq_paper.experiments import Experiment, numerics_digest, published, recipe_key

FORMAT = "lbq-experiment-2"

_CURVE_LINES = 40
"""Points of the training curve that a record keeps, about."""


@dataclass(frozen=True)
class Record:
    """A record and what it is a record of."""

    path: Path
    body: Document

    @property
    def is_current(self) -> bool:
        """Whether the code that computed it is the code that runs now."""
        return self.body["numerics_sha256"] == numerics_digest()

    @property
    def is_diverged(self) -> bool:
        """Whether training ended in numbers that are none."""
        return "diverged" in self.body

    @property
    def accuracy(self) -> float | None:
        """Percent of right answers when it was measured; None if training diverged.

        Measured after the last epoch by the same forward that was counted, which is not compiled:
        what training evaluated may have been, and then differs by some levels at their thresholds.
        """
        found = self.body.get("measured_correct")
        return None if found is None else 100 * found / self.body["counts"]["num_images"]

    @property
    def seed(self) -> int:
        """The seed of its recipe."""
        return self.body["recipe"]["seed"]


def record_path(out: Path, experiment: Experiment) -> Path:
    """Say where the record of an experiment lies."""
    return out / f"{experiment.id}.json"


def write_record(out: Path, experiment: Experiment, run: Path, measured: Document) -> Path:
    """Write what a finished run and its measurement came to."""
    metrics_log = list(read_metrics_log(run / "metrics.jsonl"))
    body = {**_headline(metrics_log), **_history(metrics_log), **_provenance(run), **measured}
    return _write(out, experiment, {**body, "measured_commit": git_commit()})


def write_failure(out: Path, experiment: Experiment, run: Path, words: str) -> Path:
    """Write that training diverged: that, too, is an answer."""
    metrics_log = list(read_metrics_log(run / "metrics.jsonl"))
    return _write(out, experiment, {"diverged": words, **_history(metrics_log), **_provenance(run)})


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


def _headline(metrics_log: list[dict[str, Any]]) -> Document:
    """Say how good training found the network: at the end, and at best."""
    evaluations = [record for record in metrics_log if record["event"] == "evaluation"]
    last, best = evaluations[-1], max(evaluations, key=lambda record: record["correct"])
    return {
        "accuracy_after_last_epoch": last["accuracy"],
        "correct": last["correct"],
        "count": last["count"],
        "best_on_test_set": {"accuracy": best["accuracy"], "epoch": best["epoch"]},
        "evaluations": [_rounded(r, ("epoch", "accuracy", "loss")) for r in evaluations],
    }


def _history(metrics_log: list[dict[str, Any]]) -> Document:
    """Describe a run from its metrics log: time, devices, curve."""
    attempts = [record for record in metrics_log if record["event"] in ("start", "resume")]
    curve = [record for record in metrics_log if record["event"] == "train"]
    kept = ("epoch", "loss", "accuracy", "active", "samples_per_s")
    return {
        "minutes": round(_seconds(metrics_log) / 60, 2),
        "attempts": len(attempts),
        **_rounded(attempts[-1], ("device", "processes", "threads")),
        "curve": [_rounded(record, kept) for record in curve[:: 1 + len(curve) // _CURVE_LINES]],
    }


def _provenance(run: Path) -> Document:
    """Say what the newest checkpoint was made with, and on which machine."""
    checkpoints = RunFolder(run).checkpoints
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {_cpu()}"
    found = {"machine": machine, "native_kernels": isa()}
    if not checkpoints.steps():
        return found
    manifest = read_json(checkpoints.path(checkpoints.steps()[-1]))["body"]
    metadata, files = manifest["metadata"], manifest["files"]
    return {
        **found,
        "commit": metadata["commit"],
        "versions": metadata["versions"],
        "weights_sha256": files.get("average", files["model"])["sha256"],
    }


def _seconds(metrics_log: list[dict[str, Any]]) -> float:
    """Add up the time of all attempts, without the time between them."""
    pairs = pairwise(metrics_log)
    return sum(b["time"] - a["time"] for a, b in pairs if b["event"] != "resume")


def _rounded(record: dict[str, Any], names: tuple[str, ...]) -> Document:
    found = ((name, record[name]) for name in names if name in record)
    return {name: round(v, 5) if isinstance(v, float) else v for name, v in found}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
