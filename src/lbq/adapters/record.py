"""What a finished run came to, as one JSON document that can be committed and published."""

import os
import platform
import re
from pathlib import Path
from typing import Any

from lbq.config_io import read_json
from lbq.errors import RunError
from lbq.train.metrics import read_all_records, read_metrics_log

_CURVE = ("epoch", "loss", "accuracy", "active", "samples_per_s")
_EVALUATION = ("epoch", "accuracy", "loss", "seconds")
_EVERY = 8
"""Of the lines of the curve, one in so many is kept."""


def record_run(out: str | Path) -> dict[str, Any]:
    """Return the record of a run.

    It holds the recipe, the commit, versions, the machine, the time of all attempts, the
    curve and the SHA-256 of the last checkpoint's weights, but no path of the machine.

    Args:
        out: the folder of the run.
    """
    out = Path(out)
    metrics_log = list(read_metrics_log(out / "metrics.jsonl"))
    evaluations = [line for line in metrics_log if line["event"] == "evaluation"]
    manifests = sorted((out / "checkpoints").glob("*.json"))
    if not evaluations or not manifests:
        raise RunError(f"{out} was never evaluated or saved, so there is nothing to record")
    manifest = read_json(manifests[-1])["body"]
    metadata = manifest["metadata"]
    recipe = metadata["recipe"]
    recipe["data"]["source"] = _without_path(**recipe["data"])
    last, best = evaluations[-1], max(evaluations, key=lambda line: line["accuracy"])
    attempts = _attempts(out / "metrics.jsonl")
    curve = [line for line in metrics_log if line["event"] == "train"][::_EVERY]
    return {
        "recipe": recipe,
        "accuracy_after_last_epoch": last["accuracy"],
        "correct": last["correct"],
        "count": last["count"],
        "best_on_test_set": {"accuracy": best["accuracy"], "epoch": best["epoch"]},
        "minutes": round(sum(attempts) / 60, 1),
        "attempts": len(attempts),
        "commit": metadata["commit"],
        "versions": metadata["versions"],
        "data_sha256": metadata["data"],
        "weights_sha256": manifest["files"]["model"]["sha256"],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}",
        "curve": [{key: line[key] for key in _CURVE if key in line} for line in curve],
        "evaluations": [{key: line[key] for key in _EVALUATION} for line in evaluations],
    }


def _without_path(*, source: str, kind: str, **other: Any) -> str:
    """Return the id of a data set on the hub as it is, and of a path its last part."""
    path = Path(source)
    is_id = kind == "images" and re.fullmatch(r"[\w.-]+/[\w.-]+", source) is not None
    if is_id and not source.startswith((".", "~")) and not path.exists():
        return source
    return path.name


def _attempts(metrics_log: Path) -> list[float]:
    """Return how many seconds each attempt took.

    Read from a clock that nobody can set; logs of lbq 0.1 have the time of day only.
    """
    seconds, start = list[float](), 0.0
    for line in read_all_records(metrics_log):
        if line["event"] in ("start", "resume"):
            start = line["time"]
            seconds.append(0.0)
        if seconds:
            seconds[-1] = line.get("elapsed_s", line["time"] - start)
    return seconds


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
