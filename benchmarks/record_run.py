"""Write down what a run came to, as one JSON file that can be committed.

    python benchmarks/record_run.py runs/pocket results/training/pocket.json

The record holds the recipe, the commit, versions, the machine, the time that passed in all lives,
the curve and the SHA-256 of the last checkpoint's weights, but no path of the machine.
"""

import argparse
import json
import os
import platform
from pathlib import Path

from lbq.train import read_journal


def record(run: Path) -> dict[str, object]:
    """Return the record of a finished run."""
    journal = list(read_journal(run / "journal.jsonl"))
    newest = max((run / "checkpoints").glob("*.json"))
    manifest = json.loads(newest.read_text())["body"]
    facts = manifest["facts"]
    recipe = facts["recipe"]
    recipe["data"]["source"] = Path(recipe["data"]["source"]).name
    evaluations = [r for r in journal if r["event"] == "evaluation"]
    last = evaluations[-1]
    best = max(evaluations, key=lambda r: r["accuracy"])
    lives = [r["time"] for r in journal if r["event"] in ("start", "resume")]
    return {
        "recipe": recipe,
        "accuracy_after_last_epoch": last["accuracy"],
        "correct": last["correct"],
        "count": last["count"],
        "best_on_test_set": {"accuracy": best["accuracy"], "epoch": best["epoch"]},
        "minutes": round((journal[-1]["time"] - lives[0]) / 60, 1),
        "lives": len(lives),
        "commit": facts["commit"],
        "versions": facts["versions"],
        "data_sha256": facts["data"],
        "weights_sha256": manifest["files"]["model"]["sha256"],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_cpu()}",
        "curve": [
            {
                key: r[key]
                for key in ("epoch", "loss", "accuracy", "active", "samples_per_s")
                if key in r
            }
            for r in journal
            if r["event"] == "train"
        ][::8],
        "evaluations": [
            {key: r[key] for key in ("epoch", "accuracy", "loss", "seconds")} for r in evaluations
        ],
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    found = record(arguments.run)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['accuracy_after_last_epoch']:.2%} in {found['minutes']} minutes")


if __name__ == "__main__":
    main()
