import errno
import time

import pytest
import torch

from lbq.errors import RunError
from lbq.train.checkpoint import Checkpoint, CheckpointFolder
from lbq.train.saving import Saver


def checkpoint(step):
    return Checkpoint(step=step, parts={"model": {"w": torch.ones(2)}}, metadata={})


@pytest.fixture
def told():
    return []


@pytest.fixture
def saver(tmp_path, told):
    return Saver(CheckpointFolder(tmp_path), told.append, every_steps=3)


def test_it_is_time_after_so_many_steps_or_seconds(tmp_path, told, saver, monkeypatch):
    assert [step for step in range(1, 10) if saver.is_due(step)] == [3, 6, 9]
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    timed = Saver(CheckpointFolder(tmp_path), told.append, every_s=60.0)
    now[0] = 159.0
    assert not timed.is_due(3)
    now[0] = 160.0
    assert timed.is_due(3)
    timed.save(checkpoint(3))
    assert not timed.is_due(4)


def test_a_saved_step_is_told(saver, told, tmp_path):
    saver.save(checkpoint(3))
    assert told[0]["event"] == "checkpoint"
    assert told[0]["path"] == str(tmp_path / "000000003.json")


@pytest.fixture
def full(monkeypatch):
    def fail(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def switch(is_full):
        monkeypatch.undo()
        if is_full:
            monkeypatch.setattr("lbq.train.checkpoint.atomic_write", fail)

    return switch


def test_a_full_disk_is_borne_twice_and_forgotten_when_there_is_room(saver, told, full, tmp_path):
    saver.save(checkpoint(3))
    for _ in range(2):
        full(True)
        saver.save(checkpoint(6))
        saver.save(checkpoint(9))
        full(False)
        saver.save(checkpoint(12))
    assert [record["event"] for record in told[:4]] == [
        "checkpoint",
        "save_failed",
        "save_failed",
        "checkpoint",
    ]
    assert CheckpointFolder(tmp_path).load_newest().step == 12


def test_the_third_failure_in_a_row_ends_the_run_and_says_what_is_left(saver, full):
    saver.save(checkpoint(3))
    full(True)
    saver.save(checkpoint(6))
    saver.save(checkpoint(9))
    with pytest.raises(
        RunError, match=r"No space left on device: .*last good checkpoint is of step 3"
    ):
        saver.save(checkpoint(12))


def test_a_last_chance_that_fails_ends_the_run_at_once(saver, full):
    full(True)
    with pytest.raises(RunError, match="step none"):
        saver.save(checkpoint(3), must=True)
