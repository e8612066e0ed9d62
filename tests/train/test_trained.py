from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lbq.config_io import to_document
from lbq.data import open_data
from lbq.errors import FormatError, LBQError, RunError
from lbq.train.checkpoint import Checkpoint
from lbq.train.engine import RunOptions, train
from lbq.train.metrics import read_metrics_log
from lbq.train.recipe import read_recipe
from lbq.train.run_folder import RunFolder
from lbq.train.trained import evaluate_run, load_trained

OPTIONS = RunOptions(device="cpu", cache=Path("/nonexistent"))
CACHE = Path("/nonexistent")


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.5}])
def test_what_was_trained_is_loaded_and_answers_as_it_did(tiny, tmp_path, changes):
    recipe = tiny.tiny_recipe(**changes)
    outcome = train(recipe, tmp_path, OPTIONS)
    model, found, step = load_trained(tmp_path)
    assert (found, step) == (recipe, 12)
    assert not model.training
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 10)
    told = []
    again = evaluate_run(
        tmp_path, cache=CACHE, device="cpu", tell=lambda done, total: told.append((done, total))
    )
    assert again == outcome.evaluations[-1]
    assert told == [(16, 30), (30, 30)]  # batches of 16


def test_an_earlier_checkpoint_can_be_asked_for(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, replace(OPTIONS, save_every_steps=8))
    assert load_trained(tmp_path, step=8)[2] == 8
    assert evaluate_run(tmp_path, cache=CACHE, device="cpu", step=8).epoch == 2
    with pytest.raises(RunError, match=r"no checkpoint of step 9; it has \[8, 12\]"):
        load_trained(tmp_path, step=9)


def test_loading_changes_nothing_even_if_a_file_is_damaged(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, replace(OPTIONS, save_every_steps=8))
    (tmp_path / "checkpoints" / "000000012.model.safetensors").write_bytes(b"")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert load_trained(tmp_path)[2] == 8
    with pytest.raises(FormatError, match="has 0 bytes"):
        load_trained(tmp_path, step=12)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("metadata", "words"),
    [({}, "Recipe must be an object"), ({"recipe": None}, "Recipe must be an object")],
)
def test_a_checkpoint_that_does_not_say_what_it_is_is_refused(tmp_path, metadata, words):
    checkpoint = Checkpoint(step=1, parts={"model": {}}, metadata=metadata)
    RunFolder(tmp_path).checkpoints.save(checkpoint)
    with pytest.raises(LBQError, match=words):
        load_trained(tmp_path)


def test_a_checkpoint_that_does_not_say_its_classes_is_refused(tiny, tmp_path):
    metadata = {"recipe": to_document(tiny.tiny_recipe()), "num_classes": "ten"}
    checkpoint = Checkpoint(step=1, parts={"model": {}}, metadata=metadata)
    RunFolder(tmp_path).checkpoints.save(checkpoint)
    with pytest.raises(FormatError, match="how many classes"):
        load_trained(tmp_path)


def test_a_folder_without_a_run_is_a_mistake_that_is_explained(tmp_path):
    with pytest.raises(LBQError, match="is it the folder of a run"):
        load_trained(tmp_path)


def test_paths_may_be_text(tiny, tmp_path):
    recipe, out = tiny.tiny_recipe(epochs=1), str(tmp_path / "run")
    outcome = train(recipe, out, RunOptions(device="cpu", cache="/nonexistent"))
    assert load_trained(out)[1] == recipe
    again = evaluate_run(out, cache="/nonexistent", device="cpu")
    assert again == outcome.evaluations[-1]
    assert read_recipe(str(tmp_path / "run" / "recipe.json")) == recipe
    assert RunFolder(out).read_recipe() == recipe
    assert list(read_metrics_log(out + "/metrics.jsonl"))
    assert open_data(recipe.data, "/nonexistent").num_classes == 10
    assert open_data(recipe.data, cache="/nonexistent").num_classes == 10
