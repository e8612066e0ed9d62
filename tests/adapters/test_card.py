import json
from pathlib import Path

import pytest

from lbq.adapters.card import write_card
from lbq.shelf import pretrained_names, record_of
from lbq.train import Recipe
from lbq.train.document import from_document

RESULTS = Path(__file__).parents[2] / "results" / "training"


def card_of(name):
    is_ours = name in pretrained_names()
    record = record_of(name) if is_ours else json.loads((RESULTS / f"{name}.json").read_text())
    recipe = from_document(Recipe, record["recipe"])
    return record, write_card(record, recipe, num_parameters=274_000)


@pytest.mark.parametrize("name", ["pocket-cifar10", "pocket-ann", "nmnist-pocket"])
def test_the_card_says_what_the_record_says(name):
    record, card = card_of(name)
    accuracy = record["accuracy_after_last_epoch"]
    assert f"{accuracy:.2%} ({record['correct']:,} of {record['count']:,} test samples)" in card
    for fact in (record["commit"], record["weights_sha256"], record["data_sha256"]):
        assert fact in card
    assert "274,000 parameters" in card
    assert "best epoch, chosen on the test set" in card


def test_the_hub_reads_its_front_matter():
    hub = pytest.importorskip("huggingface_hub")
    record, text = card_of("pocket-cifar10")
    data = hub.ModelCard(text).data
    assert data.library_name == "lbq"
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value) == (
        "accuracy",
        record["accuracy_after_last_epoch"],
    )
    assert result.dataset_name == "cifar10"


def test_words_of_a_recipe_cannot_leave_their_place_in_the_front_matter():
    hub = pytest.importorskip("huggingface_hub")
    record, _ = card_of("pocket-cifar10")
    record["recipe"]["name"] = 'odd: "name"\n---\nlicense: mit'
    recipe = from_document(Recipe, record["recipe"])
    data = hub.ModelCard(write_card(record, recipe, num_parameters=1)).data
    assert data.get("license") is None
    assert data.model_name == recipe.name
