import json

import pytest

from lbq.adapters.record import record_run
from lbq.errors import RunError
from lbq.train import Recipe, train
from lbq.train.document import from_document


def test_the_record_says_what_the_run_came_to(tmp_path, tiny):
    recipe = tiny.tiny_recipe(epochs=2)
    outcome = train(recipe, tmp_path / "run")
    record = record_run(tmp_path / "run")
    last = outcome.evaluations[-1]
    assert (record["correct"], record["count"]) == (last.correct, last.count)
    assert record["accuracy_after_last_epoch"] == last.accuracy
    assert record["best_on_test_set"]["accuracy"] == max(e.accuracy for e in outcome.evaluations)
    assert from_document(Recipe, record["recipe"]) == recipe
    assert record["weights_sha256"] == tiny.final_hashes(tmp_path / "run")[1]["model"]
    assert record["lives"] == 1
    assert str(tmp_path) not in json.dumps(record)


def test_a_folder_without_a_run_is_said_to_be_none(tmp_path):
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(RunError, match="nothing to record"):
        record_run(tmp_path)
