import errno
import logging
import os
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lbq.errors import FormatError, RunError
from lbq.train import checkpoint as checkpoint_module
from lbq.train.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    Progress,
    Saver,
    copy_tensors,
    read_progress,
)
from lbq.train.evaluation import Evaluation


def checkpoint(step, value=0.0):
    parts = {
        "model": {"weight": torch.full((3, 2), value), "count": torch.tensor(step)},
        "training": {"weight:momentum": torch.arange(6.0).reshape(2, 3).t()},
    }
    return Checkpoint(step=step, parts=parts, metadata={"loss": 0.1 + value, "words": "ja"})


def assert_equal(one, other):
    assert (one.step, one.metadata) == (other.step, other.metadata)
    for part in one.parts:
        assert one.parts[part].keys() == other.parts[part].keys()
        assert all(
            torch.equal(one.parts[part][name], other.parts[part][name]) for name in one.parts[part]
        )


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def test_what_was_saved_is_loaded(folder):
    assert folder.load_newest() is None
    folder.save(checkpoint(7, 1.5))
    assert_equal(folder.load(7), checkpoint(7, 1.5))
    assert_equal(folder.load_newest(), checkpoint(7, 1.5))


def test_the_newest_ones_are_kept_and_older_ones_removed(folder):
    for step in (1, 2, 30, 4_000):
        folder.save(checkpoint(step))
    assert folder.steps() == [30, 4_000]
    assert len(os.listdir(folder.folder)) == 6


def test_a_save_that_fails_leaves_no_part_behind(folder, monkeypatch):
    folder.save(checkpoint(1))
    real = checkpoint_module.atomic_write

    def fail_at_the_second(path, data):
        if ".training." in path.name:
            raise OSError("no space left")
        real(path, data)

    monkeypatch.setattr(checkpoint_module, "atomic_write", fail_at_the_second)
    for step in (1, 2):  # also where a whole checkpoint of the step is there
        with pytest.raises(OSError, match="no space left"):
            folder.save(checkpoint(step))
    assert len(os.listdir(folder.folder)) == 3
    assert folder.load_newest().step == 1


def test_one_checkpoint_is_not_enough(tmp_path):
    with pytest.raises(RunError, match="keep must be at least 2, got 1"):
        CheckpointFolder(tmp_path, keep=1)


def test_an_older_one_is_removed_only_after_the_newer_one_was_read_back(folder, monkeypatch):
    for step in (1, 2):
        folder.save(checkpoint(step))

    def bad(path, **entry):
        raise FormatError("the disk lies")

    monkeypatch.setattr(checkpoint_module, "_read_exactly", bad)
    with pytest.raises(FormatError, match="the disk lies"):
        folder.save(checkpoint(3))
    assert {1, 2} <= set(folder.steps())


@pytest.mark.parametrize("damage", ["flipped bit", "truncated"])
@settings(max_examples=150)
@given(data=st.data())
def test_damage_anywhere_is_noticed_and_the_checkpoint_before_is_used(
    data, damage, tmp_path_factory
):
    folder = CheckpointFolder(tmp_path_factory.mktemp("damaged"))
    folder.save(checkpoint(1, 1.0))
    folder.save(checkpoint(2, 2.0))
    path = data.draw(st.sampled_from(sorted(folder.folder.glob("000000002*"))))
    raw = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    if damage == "truncated":
        del raw[place:]
    else:
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        folder.load(2)
    assert_equal(folder.load_newest(), checkpoint(1, 1.0))


def test_falling_back_is_logged_and_renames_the_damaged_one(folder, caplog):
    folder.save(checkpoint(1))
    folder.save(checkpoint(2))
    (folder.folder / "000000002.model.safetensors").unlink()
    with caplog.at_level(logging.ERROR):
        assert folder.load_newest(quarantine=True).step == 1
    assert "step 2 is damaged, falling back" in caplog.text
    assert "000000002.json.corrupt" in os.listdir(folder.folder)
    assert folder.steps() == [1]


def test_if_all_are_damaged_the_run_does_not_start_again(folder):
    folder.save(checkpoint(1))
    folder.path(1).write_text("{}")
    for _ in range(2):  # also after they were put aside
        with pytest.raises(FormatError, match=r"all checkpoints in .* are damaged"):
            folder.load_newest(quarantine=True)


def test_parts_without_a_manifest_are_no_checkpoint_and_are_removed(folder):
    folder.save(checkpoint(1))
    folder.save(checkpoint(2))
    folder.path(2).unlink()
    (folder.folder / ".000000003.json.tmp").write_text("half")
    (folder.folder / "notes.txt").write_text("mine")
    assert folder.load_newest().step == 1
    folder.remove_partial()
    names = {"000000001.json", "000000001.model.safetensors", "000000001.training.safetensors"}
    assert set(os.listdir(folder.folder)) == names | {"notes.txt"}


def test_a_manifest_of_another_format_is_refused_and_not_called_damaged(folder, monkeypatch):
    monkeypatch.setattr("lbq.train.checkpoint.FORMAT", 3)
    folder.save(checkpoint(1))
    monkeypatch.undo()
    with pytest.raises(RunError, match="format 3, this version of lbq reads format 2"):
        folder.load_newest(quarantine=True)
    assert folder.steps() == [1]


def test_a_manifest_of_another_step_is_refused(folder):
    folder.save(checkpoint(1))
    os.rename(folder.path(1), folder.path(5))
    with pytest.raises(FormatError, match="manifest of step 1"):
        folder.load(5)


@pytest.mark.parametrize("text", ["", "null", "[]", '{"body": 3}', "[" * 100_000, "9" * 10_000])
def test_anything_else_is_not_a_manifest(folder, text):
    folder.save(checkpoint(1))
    folder.path(1).write_text(text)
    with pytest.raises(FormatError):
        folder.load(1)


BODY = {"format": 2, "step": 9, "metadata": {}}


@pytest.mark.parametrize(
    "body",
    [
        [],
        [{"format": 2}],
        None,
        "body",
        BODY | {"files": {"model": {"bytes": "1", "sha256": "0"}}},
        BODY | {"files": {"model": {"bytes": 1, "sha256": [1]}}},
    ],
    ids=["list", "list of one", "null", "text", "size as text", "hash as list"],
)
def test_a_manifest_with_other_fields_is_skipped(folder, body):
    folder.save(checkpoint(7, 1.5))
    folder.path(9).write_bytes(checkpoint_module._manifest_bytes(body))  # with the right SHA-256
    with pytest.raises(FormatError):
        folder.load(9)
    assert_equal(folder.load_newest(quarantine=True), checkpoint(7, 1.5))
    assert folder.steps() == [7]


@pytest.mark.parametrize("name", ["000000009.json", "000000009.model.safetensors"])
def test_a_folder_in_the_place_of_a_file_is_skipped(folder, name):
    folder.save(checkpoint(7, 1.5))
    folder.save(checkpoint(9, 2.5))
    (folder.folder / name).unlink()
    (folder.folder / name).mkdir()
    assert_equal(folder.load_newest(quarantine=True), checkpoint(7, 1.5))
    assert folder.steps() == [7]
    folder.save(checkpoint(9, 2.5))
    assert_equal(folder.load_newest(), checkpoint(9, 2.5))


def test_a_folder_in_the_place_of_an_old_file_does_not_stop_saving(folder):
    folder.save(checkpoint(7))
    folder.path(7).unlink()
    folder.path(7).mkdir()
    (folder.folder / "000000005.model.safetensors").mkdir()
    for step in (8, 9, 10):
        folder.save(checkpoint(step))
        folder.remove_partial()
    assert folder.steps() == [9, 10]


def evaluation(step, correct):
    return Evaluation(step=step, epoch=step, correct=correct, count=10, loss=0.5)


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.9, "precision": "fp16"}])
def test_a_state_survives_a_file_bit_for_bit(build, folder, changes):
    before, after = (build(**changes) for _ in range(2))
    generator = torch.Generator().manual_seed(5)
    for part in before.tensors().values():
        for tensor in part.values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
    if before.precision.kind == "fp16":
        before.precision.scaler.load_state_dict(
            before.precision.scaler.state_dict() | {"scale": 1024.0, "_growth_tracker": 7}
        )
    before.progress = Progress(step=7, skipped=1, evaluations=[evaluation(4, 3)])
    folder.save(before.checkpoint({"words": "more"}))
    found = folder.load(7)
    after.restore(found)
    assert after.progress == before.progress
    assert after.precision.scaler.state_dict() == before.precision.scaler.state_dict()
    assert found.metadata["words"] == "more"
    for part, tensors in before.tensors().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, after.tensors()[part][name]), name


def test_a_state_with_other_parts_is_refused(build):
    state = build(ema_decay=0.9)
    parts = {"model": state.tensors()["model"]}
    with pytest.raises(FormatError, match=r"the parts \['model'\], this run"):
        state.restore(Checkpoint(step=1, parts=parts, metadata={}))


def test_the_best_evaluation_is_the_first_with_the_most_correct():
    assert Progress().best is None
    found = [evaluation(1, 3), evaluation(2, 7), evaluation(3, 7), evaluation(4, 5)]
    assert Progress(evaluations=found).best == found[1]
    assert found[1].accuracy == 0.7


@pytest.mark.parametrize("scale", [None, {}, {"scale": "large"}])
def test_a_loss_scale_that_does_not_fit_is_refused(build, scale):
    state = build(precision="fp16")
    metadata = state.checkpoint({}).metadata | {"loss_scale": scale}
    with pytest.raises(FormatError, match="loss scale"):
        state.restore_metadata(metadata)


@pytest.mark.parametrize("metadata", [{}, {"progress": {}}, {"progress": {"evaluations": [{}]}}])
def test_metadata_without_progress_is_refused(metadata):
    with pytest.raises(FormatError, match="has no valid progress"):
        read_progress(metadata)


def test_tensors_that_do_not_fit_are_refused():
    target = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(FormatError, match=r"missing \['b'\], 1 are unexpected \['c'\]"):
        copy_tensors({"a": torch.zeros(2), "c": torch.zeros(1)}, target, what="file")
    with pytest.raises(FormatError, match=r"b must be .* \(3,\), got torch.float32 \(4,\)"):
        copy_tensors({"a": torch.zeros(2), "b": torch.zeros(4)}, target, what="file")
    with pytest.raises(FormatError, match=r"torch\.float64"):
        copy_tensors({"a": torch.zeros(2), "b": torch.zeros(3).double()}, target, what="file")


@pytest.fixture
def captured():
    return []


@pytest.fixture
def saver(tmp_path, captured):
    return Saver(CheckpointFolder(tmp_path), captured.append, every_steps=3)


def test_a_checkpoint_is_due_after_so_many_steps_or_seconds(tmp_path, captured, saver, monkeypatch):
    assert [step for step in range(1, 10) if saver.is_due(step)] == [3, 6, 9]
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    timed = Saver(CheckpointFolder(tmp_path), captured.append, every_s=60.0)
    now[0] = 159.0
    assert not timed.is_due(3)
    now[0] = 160.0
    assert timed.is_due(3)
    timed.save(checkpoint(3))
    assert not timed.is_due(4)


def test_a_saved_step_is_logged(saver, captured, tmp_path):
    saver.save(checkpoint(3))
    assert captured[0]["event"] == "checkpoint"
    assert captured[0]["path"] == str(tmp_path / "000000003.json")


@pytest.fixture
def full(monkeypatch):
    def fail(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def switch(is_full):
        monkeypatch.undo()
        if is_full:
            monkeypatch.setattr("lbq.train.checkpoint.atomic_write", fail)

    return switch


def test_a_full_disk_is_tolerated_twice_and_forgotten_when_there_is_space(
    saver, captured, full, tmp_path
):
    saver.save(checkpoint(3))
    for _ in range(2):
        full(True)
        saver.save(checkpoint(6))
        saver.save(checkpoint(9))
        full(False)
        saver.save(checkpoint(12))
    failures = ["save_failed", "save_failed", "checkpoint"]
    assert [record["event"] for record in captured] == ["checkpoint", *failures, *failures]
    assert CheckpointFolder(tmp_path).load_newest().step == 12


def test_the_third_failure_in_a_row_ends_the_run_and_names_the_last_checkpoint(saver, full):
    saver.save(checkpoint(3))
    full(True)
    saver.save(checkpoint(6))
    saver.save(checkpoint(9))
    with pytest.raises(RunError, match=r"No space left on device: .*last checkpoint is of step 3"):
        saver.save(checkpoint(12))


def test_a_last_save_that_fails_ends_the_run_at_once(saver, full):
    full(True)
    with pytest.raises(RunError, match="step none"):
        saver.save(checkpoint(3), is_last=True)
