"""The record of a run: results, settings and provenance as one JSON document to publish."""

import os
import platform
import re
from pathlib import Path
from typing import Any

from lbq.config_io import read_json
from lbq.errors import RunError
from lbq.kernels.native_scan import isa
from lbq.train.metrics import Record, read_all_records, read_metrics_log

_CURVE = ("epoch", "loss", "accuracy", "active", "samples_per_s")
_EVALUATION = ("epoch", "accuracy", "loss")
_CURVE_POINTS = 40
"""Approximate number of points of the training curve that a record keeps."""


def record_run(out: str | Path) -> dict[str, Any]:
    """Return the record of a run that was evaluated and saved.

    It holds the recipe, the results on the test set and :func:`run_history`, but no path of the
    machine. For a run of :func:`lbq.fit` it holds the settings, the class of the model and the
    digest of its structure instead of a recipe.

    Args:
        out: the folder of the run.
    """
    out = Path(out)
    metrics_log = list(read_metrics_log(out / "metrics.jsonl"))
    evaluations = [line for line in metrics_log if line["event"] == "evaluation"]
    manifest = _newest_manifest(out)
    if not evaluations or manifest is None:
        raise RunError(f"{out} was never evaluated or saved, so there is nothing to record")
    last = evaluations[-1]
    return {
        **_subject(manifest["metadata"], metrics_log),
        **_scores(last),
        "count": last["count"],
        "best_on_test_set": _best(evaluations),
        **run_history(out),
        "evaluations": [_rounded(line, _EVALUATION) for line in evaluations],
    }


def _subject(metadata: dict[str, Any], metrics_log: list[Record]) -> dict[str, Any]:
    """Describe the trained network."""
    if "recipe" in metadata:
        recipe = metadata["recipe"]
        recipe["data"]["source"] = _without_path(**recipe["data"])
        return {"recipe": recipe}
    names = [line["model"] for line in metrics_log if "model" in line]
    return {
        "model": names[-1],
        "structure": metadata["structure"],
        "config": metadata["config"],
        "loss": metadata["loss"],
    }


def _scores(last: Record) -> dict[str, Any]:
    """Return the scores after the last epoch; a run of :func:`lbq.fit` may have no accuracy."""
    if "correct" in last:
        return {"accuracy_after_last_epoch": last["accuracy"], "correct": last["correct"]}
    return {"loss_after_last_epoch": last["loss"]}


def _best(evaluations: list[Record]) -> dict[str, Any]:
    if "correct" in evaluations[-1]:
        best = max(evaluations, key=lambda line: line["correct"])
        return {"accuracy": best["accuracy"], "epoch": best["epoch"]}
    best = min(evaluations, key=lambda line: line["loss"])
    return {"loss": best["loss"], "epoch": best["epoch"]}


def run_history(out: Path) -> dict[str, Any]:
    """Return time, attempts, machine and training curve of a run, finished or not.

    If the run has a checkpoint, also its commit, versions, data and the SHA-256 of the weights that
    ``load_run`` loads.
    """
    metrics_log = list(read_metrics_log(out / "metrics.jsonl"))
    starts = [line for line in metrics_log if line["event"] in ("start", "resume")]
    curve = [line for line in metrics_log if line["event"] == "train"]
    attempts = _attempts(out / "metrics.jsonl")
    history = {
        "minutes": round(sum(attempts) / 60, 2),
        "attempts": len(attempts),
        **_rounded(starts[-1], ("device", "processes", "threads")),
        "machine": machine_name(),
        "native_kernels": isa(),
        "curve": [_rounded(line, _CURVE) for line in curve[:: 1 + len(curve) // _CURVE_POINTS]],
    }
    manifest = _newest_manifest(out)
    if manifest is None:
        return history
    metadata, files = manifest["metadata"], manifest["files"]
    return {
        **history,
        "commit": metadata["commit"],
        "versions": metadata["versions"],
        "data_sha256": metadata["data"],
        "weights_sha256": files.get("average", files["model"])["sha256"],
    }


def _newest_manifest(out: Path) -> dict[str, Any] | None:
    manifests = sorted((out / "checkpoints").glob("*.json"))
    return read_json(manifests[-1])["body"] if manifests else None


def _rounded(line: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    found = ((key, line[key]) for key in keys if key in line)
    return {key: round(v, 5) if isinstance(v, float) else v for key, v in found}


def _without_path(*, source: str, kind: str, **other: Any) -> str:
    """Keep the id of a data set on the hub; keep only the last part of a path."""
    path = Path(source)
    is_id = kind == "images" and re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None
    if is_id and not source.startswith((".", "~")) and not path.exists():
        return source
    return path.name


def _attempts(metrics_log: Path) -> list[float]:
    """Return the seconds of each attempt, from a monotonic clock (lbq 0.1: the time of day)."""
    seconds, start = list[float](), 0.0
    for line in read_all_records(metrics_log):
        if line["event"] in ("start", "resume"):
            start = line["time"]
            seconds.append(0.0)
        if seconds:
            seconds[-1] = line.get("elapsed_s", line["time"] - start)
    return seconds


def machine_name() -> str:
    """Return architecture, number of cores and processor."""
    return f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
