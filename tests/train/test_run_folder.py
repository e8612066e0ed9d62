import os
import subprocess
import sys
import time

import pytest

from lbq.errors import RunError
from lbq.train.run_folder import RunFolder

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
    folder.write_recipe(tiny.tiny_recipe())
    assert folder.read_recipe() == tiny.tiny_recipe()


def put_symlink(place, victim):
    place.symlink_to(victim)


def put_dangling_symlink(place, victim):
    place.symlink_to(victim.with_name("nowhere"))


def put_hard_link(place, victim):
    os.link(victim, place)


def put_other_file(place, victim):
    place.write_text("precious")


def put_folder(place, victim):
    place.mkdir()


def put_pipe(place, victim):
    os.mkfifo(place)


@pytest.mark.parametrize(
    "put",
    [put_symlink, put_dangling_symlink, put_hard_link, put_other_file, put_folder, put_pipe],
)
def test_what_is_no_lock_of_ours_is_neither_followed_nor_changed(tmp_path, put):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run").mkdir()
    put(tmp_path / "run" / "lock", victim)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunError, match="lock is not a lock that lbq wrote"), folder.locked():
        pass
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "victim"]
    if put is put_other_file:
        assert (tmp_path / "run" / "lock").read_text() == "precious"


def test_a_lock_that_was_left_behind_is_taken_over(tmp_path):
    for _ in range(2):
        with RunFolder(tmp_path).locked():
            held = (tmp_path / "lock").read_text()
    assert held == f"process {os.getpid()} on {os.uname().nodename}"


def test_a_process_cannot_train_twice_in_one_folder(tmp_path):
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        for name in ("run", "alias"):
            folder = RunFolder(tmp_path / name)
            with pytest.raises(RunError, match="this process trains in"), folder.locked():
                pass
        command = [sys.executable, "-c", TRY, str(tmp_path / "run")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "another process" in done.stderr  # the lock of the first is still held
    with RunFolder(tmp_path / "alias").locked():
        pass
