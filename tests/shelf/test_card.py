import copy

import pytest

from lbq.shelf import pretrained_names, record_of
from lbq.shelf.card import model_card
from lbq.shelf.pretrained import SHELF


@pytest.mark.parametrize("name", pretrained_names())
def test_the_card_is_what_the_record_generates(name):
    assert (SHELF / name / "README.md").read_text() == model_card(record_of(name)), (
        "write it again: python benchmarks/record_exact.py NAME --data DATA"
    )


def test_another_record_gives_another_card():
    record = record_of("pocket-cifar10")
    other = copy.deepcopy(record)
    other["correct"] += 1
    other["exact"]["after"][-1]["unary_acs"] *= 2
    assert model_card(other) != model_card(record)
    assert f"{other['correct']:,} of 10,000" in model_card(other)
