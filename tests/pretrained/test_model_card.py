import copy
import json
from pathlib import Path

import pytest

from lbq.pretrained import pretrained_names, pretrained_record
from lbq.pretrained.loading import FOLDER, pretrained_card
from lbq.pretrained.model_card import CARD, write_card

RESULTS = Path(__file__).parents[2] / "results" / "training"


def read_record(name):
    is_ours = name in pretrained_names()
    return (
        pretrained_record(name) if is_ours else json.loads((RESULTS / f"{name}.json").read_text())
    )


def write(record):
    return write_card(record, name="net", opening="Load it.", num_parameters=274_000)


@pytest.mark.parametrize("name", pretrained_names())
def test_the_card_is_what_the_record_generates(name):
    assert (FOLDER / name / CARD).read_text() == pretrained_card(name), (
        "write it again: python -m lbq_paper.record_exact NAME --data DATA"
    )


@pytest.mark.parametrize("name", ["pocket-cifar10", "pocket-ann", "nmnist-pocket"])
def test_the_card_says_what_the_record_says(name):
    record = read_record(name)
    card, accuracy = write(record), record["accuracy_after_last_epoch"]
    assert f"{record['correct']:,} of {record['count']:,} ({accuracy:.2%})" in card
    for fact in (record["commit"], record["weights_sha256"], record["data_sha256"]):
        assert fact in card
    assert "274,000 parameters" in card
    assert "best epoch, chosen on the test set" in card
    assert ("accumulations per image" in card) == ("exact" in record)


def test_frames_of_events_are_not_said_to_be_normalised():
    """Their recipes hold a normalisation of images, which nobody applies."""
    assert "events counted into 4 frames, not normalised" in write(read_record("nmnist-pocket"))
    assert "0.4914" not in write(read_record("nmnist-pocket"))
    assert "minus (0.4914, " in write(read_record("pocket-ann"))


def test_another_record_gives_another_card():
    record = pretrained_record("pocket-cifar10")
    other = copy.deepcopy(record)
    other["correct"] += 1
    other["exact"]["after"][-1]["unary_acs"] *= 2
    assert f"{other['correct']:,} of 10,000" in write(other)
    rows = zip(write(record).splitlines(), write(other).splitlines(), strict=True)
    assert [a.split(" | ")[0] for a, b in rows if a != b] == [
        "| test accuracy after the last epoch",
        "| accumulations per image",
    ]
