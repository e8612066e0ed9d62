import hashlib
import json
import re
from pathlib import Path

import pytest

from lbq.pretrained import pretrained_names, pretrained_record
from lbq_paper.records import read_records

RESULTS = Path(__file__).parents[2] / "results"
COMMITTED = sorted(path for size in ("full", "pocket") for path in (RESULTS / size).glob("*.json"))
OF_RUNS = sorted((RESULTS / "training").glob("*.json"))

ALWAYS = ("recipe", "commit", "versions", "machine", "minutes", "curve", "weights_sha256")
"""What every record of a training run says."""


def check(record):
    assert [key for key in ALWAYS if not record.get(key)] == []
    assert isinstance(record["recipe"]["seed"], int)
    assert {"torch", "python", "numpy", "lbq"} <= set(record["versions"])
    assert len(record["weights_sha256"]) == 64
    source = record["recipe"]["data"]["source"]  # a name or a hub id, no path of some machine
    assert re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source)
    assert record["accuracy_after_last_epoch"] == record["correct"] / record["count"]


@pytest.mark.parametrize("path", [*COMMITTED, *OF_RUNS], ids=lambda path: path.stem)
def test_every_record_says_how_it_came_about(path):
    record = json.loads(path.read_text())
    if "diverged" in record:
        assert record["recipe"]
        assert record["machine"]
        return
    check(record)


@pytest.mark.parametrize("name", pretrained_names())
def test_records_of_shipped_networks_say_so_too(name):
    check(pretrained_record(name))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_an_experiment_was_measured_on_what_it_was_evaluated_on(path):
    record = json.loads(path.read_text())
    if "diverged" in record:
        return
    assert record["id"] == path.stem
    assert record["counts"]["num_images"] == record["count"]
    assert len(record["data_sha256"]) == len(record["numerics_sha256"]) == 64
    apart = abs(record["measured_correct"] - record["correct"])
    assert apart <= (0.01 * record["count"] if record["recipe"]["compile"] else 0)


@pytest.mark.parametrize("size", ["full", "pocket"])
def test_every_committed_record_can_be_read(size):
    found = read_records(RESULTS / size)
    num_records = sum(path.parent.name == size for path in COMMITTED)
    assert sum(map(len, found.values())) == num_records


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.safetensors")), ids=lambda path: path.stem)
def test_weights_beside_a_record_are_its_own(path):
    record = json.loads(path.with_suffix(".json").read_text())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == record["weights_sha256"]
