"""Invented records, for what reads them."""

import json

import pytest

from lbq_paper.experiments import (
    full_size_experiments,
    numerics_digest,
    pocket_experiments,
    published,
)
from lbq_paper.records import FORMAT

COUNTS = {"num_images": 10_000, "ann_macs": 0, "fp_macs": 0}


def measured(accuracy, counts):
    """Return what a measurement adds to a record."""
    correct = accuracy * counts["num_images"]
    return {"measured_correct": correct, "counts": counts, "layers": []}


@pytest.fixture
def record(tmp_path):
    """Writes a record for an entry and seed, and returns where it lies."""

    def write(entry, seed, accuracy, *, size="pocket", numerics=None, counts=COUNTS, **body):
        experiments = pocket_experiments() if size == "pocket" else full_size_experiments()
        experiment = next(c for c in experiments if entry in c.entries and c.seed == seed)
        whole = {
            "format": FORMAT,
            "recipe": published(experiment.recipe),
            "numerics_sha256": numerics or numerics_digest(),
            **({} if accuracy is None else measured(accuracy, counts)),
            **body,
        }
        path = tmp_path / size / f"{experiment.id}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(whole))
        return path

    return write


@pytest.fixture
def layers():
    """Two layers as records have them: a step, the share of active neurons, their levels."""

    def make(step):
        return [
            {
                "layer": name,
                "max_level": 5,
                "step": [step * factor],
                "tail": [0.5],
                "active": active,
                "levels": [0.5, 0.25, 0.125, 0.0625, 0.0625],
                "entropy": 0.776,
            }
            for name, factor, active in (("stem", 1.0, 0.25), ("last", 3.0, 0.1))
        ]

    return make
