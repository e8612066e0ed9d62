import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lbq.config_io import to_document
from lbq.data import open_data
from lbq.errors import FormatError, LBQError, RunError
from lbq.train import RunOptions, train
from lbq.train.checkpoint import Checkpoint
from lbq.train.metrics import read_metrics_log
from lbq.train.recipe import read_recipe
from lbq.train.run_folder import RunFolder, evaluate_run, load_run

HOLD = """
import os, pathlib, sys, time
from lbq.train.run_folder import RunFolder
with RunFolder(pathlib.Path(sys.argv[1])).locked():
    if os.fork() == 0:
        time.sleep(float(sys.argv[3]))  # a child that inherits every file must not hold the lock
        os._exit(0)
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
os._exit(0)
"""

TRY = """
import sys
from lbq.train.run_folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    pass
"""


@pytest.fixture
def hold(tmp_path):
    started = []

    def start(seconds, child_seconds=0):
        command = [sys.executable, "-c", HOLD, str(tmp_path), str(seconds), str(child_seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "locked\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.multi
def test_two_starts_at_once_on_one_folder_are_refused(tmp_path, hold):
    holder = hold(60)
    message = f"process {holder.pid} on {os.uname().nodename}"
    with pytest.raises(RunError, match=message), RunFolder(tmp_path).locked():
        pass


@pytest.mark.multi
def test_the_lock_ends_with_its_process_whatever_its_children_do(tmp_path, hold):
    holder = hold(60, child_seconds=5)
    holder.kill()
    holder.wait()
    with RunFolder(tmp_path).locked():
        pass


@pytest.mark.multi
def test_a_successor_can_wait_for_its_predecessor(tmp_path, hold):
    hold(1)
    start = time.monotonic()
    with RunFolder(tmp_path).locked(wait_s=30.0):
        assert time.monotonic() - start < 25


def test_a_recipe_is_kept_with_its_run(tmp_path, tiny):
    folder = RunFolder(tmp_path)
    with pytest.raises(RunError, match="is not the folder of a run"):
        folder.read_recipe()
    folder.write_settings(tiny.tiny_recipe())
    assert folder.read_recipe() == tiny.tiny_recipe()


NOT_LOCKS = {
    "symlink": lambda lock, other: lock.symlink_to(other),
    "dangling symlink": lambda lock, other: lock.symlink_to("nowhere"),
    "hard link": lambda lock, other: lock.hardlink_to(other),
    "other file": lambda lock, other: lock.write_text("precious"),
    "folder": lambda lock, other: lock.mkdir(),
    "pipe": lambda lock, other: os.mkfifo(lock),
}


@pytest.mark.parametrize("kind", NOT_LOCKS)
def test_what_is_no_lock_of_lbq_is_neither_followed_nor_changed(tmp_path, kind):
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "run").mkdir()
    NOT_LOCKS[kind](tmp_path / "run" / "lock", other)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunError, match="lock is not a lock that lbq wrote"), folder.locked():
        pass
    assert other.read_text() == "precious"
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert names == ["other", "run", "run/lock"]
    if kind == "other file":
        assert (tmp_path / "run" / "lock").read_text() == "precious"


def test_the_lock_file_of_an_ended_process_is_reused(tmp_path):
    for _ in range(2):
        with RunFolder(tmp_path).locked():
            held = (tmp_path / "lock").read_text()
    assert held == f"process {os.getpid()} on {os.uname().nodename}"


def test_a_process_cannot_train_twice_in_one_folder(tmp_path):
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        for name in ("run", "alias"):
            folder = RunFolder(tmp_path / name)
            with pytest.raises(RunError, match="this process already trains in"), folder.locked():
                pass
        command = [sys.executable, "-c", TRY, str(tmp_path / "run")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "another process" in done.stderr  # the lock of the first is still held
    with RunFolder(tmp_path / "alias").locked():
        pass


CACHE = Path("/nonexistent")
OPTIONS = RunOptions(device="cpu", cache=CACHE)


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.5}])
def test_a_trained_network_is_loaded_and_evaluates_as_before(tiny, tmp_path, changes):
    recipe = tiny.tiny_recipe(**changes)
    outcome = train(recipe, tmp_path, OPTIONS)
    loaded = load_run(tmp_path)
    model, found, step = loaded.model, loaded.recipe, loaded.step
    assert (found, step) == (recipe, 12)
    assert not model.training
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 10)
    captured = []
    again = evaluate_run(
        tmp_path, cache=CACHE, device="cpu", progress=lambda *numbers: captured.append(numbers)
    )
    assert again == outcome.evaluations[-1]
    assert captured == [(16, 30), (30, 30)]  # batches of 16


def test_an_earlier_checkpoint_can_be_asked_for(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, replace(OPTIONS, save_every_steps=8))
    assert load_run(tmp_path, step=8).step == 8
    assert evaluate_run(tmp_path, cache=CACHE, device="cpu", step=8).epoch == 2
    with pytest.raises(RunError, match=r"no checkpoint of step 9; it has \[8, 12\]"):
        load_run(tmp_path, step=9)


def test_loading_changes_nothing_even_if_a_file_is_damaged(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, replace(OPTIONS, save_every_steps=8))
    (tmp_path / "checkpoints" / "000000012.model.safetensors").write_bytes(b"")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert load_run(tmp_path).step == 8
    with pytest.raises(FormatError, match="has 0 bytes"):
        load_run(tmp_path, step=12)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_checkpoint_without_recipe_or_classes_is_refused(tiny, tmp_path):
    recipe = to_document(tiny.tiny_recipe())
    for metadata, words in (
        ({}, "Recipe must be an object"),
        ({"recipe": None}, "Recipe must be an object"),
        ({"recipe": recipe, "num_classes": "ten"}, "no valid num_classes"),
    ):
        checkpoint = Checkpoint(step=1, parts={"model": {}}, metadata=metadata)
        RunFolder(tmp_path).checkpoints.save(checkpoint)
        with pytest.raises(LBQError, match=words):
            load_run(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="is it the folder of a run"):
        load_run(tmp_path)


def test_paths_may_be_text(tiny, tmp_path):
    recipe, out = tiny.tiny_recipe(epochs=1), str(tmp_path / "run")
    outcome = train(recipe, out, RunOptions(device="cpu", cache="/nonexistent"))
    assert load_run(out).recipe == recipe
    again = evaluate_run(out, cache="/nonexistent", device="cpu")
    assert again == outcome.evaluations[-1]
    assert read_recipe(str(tmp_path / "run" / "recipe.json")) == recipe
    assert RunFolder(out).read_recipe() == recipe
    assert list(read_metrics_log(out + "/metrics.jsonl"))
    assert open_data(recipe.data, cache="/nonexistent").num_classes == 10
