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
