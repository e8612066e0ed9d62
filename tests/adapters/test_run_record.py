import json
import shutil
import time

import pytest

from lbq.adapters.run_record import record_run
from lbq.errors import RunError
from lbq.train import train
from lbq.train.recipe import recipe_from_document
from lbq.train.task import RunOptions


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("record") / "run"
    train(tiny.tiny_recipe(epochs=1), out)
    return out


def test_the_record_says_what_the_run_came_to(tmp_path, tiny):
    recipe = tiny.tiny_recipe(epochs=2)
    outcome = train(recipe, tmp_path / "run")
    record = record_run(tmp_path / "run")
    last = outcome.evaluations[-1]
    assert (record["correct"], record["count"]) == (last.correct, last.count)
    assert record["accuracy_after_last_epoch"] == last.accuracy
    assert record["best_on_test_set"]["accuracy"] == max(e.accuracy for e in outcome.evaluations)
    assert recipe_from_document(record["recipe"]) == recipe
    assert record["weights_sha256"] == tiny.final_hashes(tmp_path / "run")[1]["model"]
    assert record["attempts"] == 1
    assert str(tmp_path) not in json.dumps(record)


@pytest.mark.parametrize(
    ("kind", "source", "said"),
    [
        ("images", "uoft-cs/cifar10", "uoft-cs/cifar10"),
        ("images", "mnist", "mnist"),
        ("images", "{here}/photos", "photos"),
        ("images", "../secret/photos", "photos"),
        ("images", "~/photos", "photos"),
        ("images", "data/photos", "photos"),  # is a folder here
        ("images", "a/b/c", "c"),
        ("nmnist", "data/nmnist", "nmnist"),
    ],
)
def test_a_record_keeps_ids_of_the_hub_and_no_paths(
    kind, source, said, finished, tmp_path, monkeypatch
):
    (tmp_path / "data" / "photos").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    out = shutil.copytree(finished, tmp_path / "run")
    (manifest,) = (out / "checkpoints").glob("*.json")
    whole = json.loads(manifest.read_text())
    whole["body"]["metadata"]["recipe"]["data"] |= {
        "kind": kind,
        "source": source.format(here=tmp_path),
    }
    manifest.write_text(json.dumps(whole))
    assert record_run(out)["recipe"]["data"]["source"] == said


def test_a_clock_that_is_set_back_does_not_shorten_a_run(tiny, tmp_path, monkeypatch):
    jumps = iter([0.0, -1e6, 1e6] * 1000)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    for stop_at in (3, None):  # two starts
        train(tiny.tiny_recipe(epochs=1), str(tmp_path), RunOptions(device="cpu", stop_at=stop_at))
    record = record_run(str(tmp_path))
    assert record["attempts"] == 2
    assert 0 <= record["minutes"] < 1


def test_a_folder_without_a_run_is_said_to_be_none(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match="nothing to record"):
        record_run(tmp_path)
