"""Workers that die, hang, complain and are left alone."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lbq.data.workers import RESTARTS, map_in_order
from lbq.errors import CorruptSample, LoaderError


def square(step):
    return torch.full((3,), float(step * step))


def who(step):
    del step
    return os.getpid(), torch.get_num_threads()


@dataclass(frozen=True)
class Accident:
    """Something happens to the worker at one step, as long as there are matches left."""

    folder: Path
    step: int
    matches: int
    what: str

    def __call__(self, step):
        if step == self.step:
            for i in range(self.matches):
                try:
                    (self.folder / str(i)).touch(exist_ok=False)
                except FileExistsError:
                    continue
                if self.what == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.what == "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if self.what == "hang":
                    time.sleep(100)
        return square(step)


def values(results):
    return [result[0].item() for result in results]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_results_come_in_order(num_workers):
    results = map_in_order(square, range(3, 40), num_workers=num_workers)
    assert values(results) == [step * step for step in range(3, 40)]


def test_work_is_done_elsewhere_on_one_thread_each():
    found = list(map_in_order(who, range(40), num_workers=2))
    assert os.getpid() not in {pid for pid, _ in found}
    assert {threads for _, threads in found} == {1}


@pytest.mark.parametrize("what", ["die", "stop", "hang"])
def test_a_lost_worker_costs_no_result(tmp_path, what):
    task = Accident(tmp_path, 5, matches=1, what=what)
    with pytest.warns(UserWarning, match=r"going on from there .* \(1 of"):
        results = values(map_in_order(task, range(12), num_workers=2, timeout=1.5))
    assert results == [step * step for step in range(12)]


def test_too_many_lost_workers_end_the_run_with_the_step(tmp_path):
    task = Accident(tmp_path, 3, matches=100, what="die")
    results = map_in_order(task, range(12), num_workers=2, timeout=30.0)
    with (
        pytest.warns(UserWarning, match="died"),
        pytest.raises(LoaderError, match=f"after {RESTARTS} restarts"),
    ):
        list(results)
    assert len(list(tmp_path.iterdir())) == RESTARTS + 1


def kill_in_passing():
    """Kill the worker after ten results, and go on working while the signal arrives."""
    for count, (pid, _) in enumerate(map_in_order(who, range(30), num_workers=1, timeout=30.0)):
        if count == 10:
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        yield pid


def test_killing_a_worker_from_outside_does_not_disturb_the_main_process():
    """torch's DataLoader raises from a signal handler here, in the middle of anything."""
    with pytest.warns(UserWarning, match="died"):
        seen = list(kill_in_passing())
    assert len(seen) == 30
    assert len(set(seen)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_is_left_to_the_main_process(number):
    results = map_in_order(who, range(200), num_workers=1, timeout=30.0)
    pid, _ = next(results)
    os.kill(pid, number)
    assert {other for other, _ in results} == {pid}


def complain(step):
    if step == 2:
        raise CorruptSample("cats/17.jpg is torn")
    return step


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_complaint_arrives_as_it_is(num_workers):
    results = map_in_order(complain, range(5), num_workers=num_workers)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(CorruptSample, match=r"cats/17\.jpg"):
        next(results)


def test_no_worker_outlives_an_abandoned_loop():
    results = map_in_order(who, range(1000), num_workers=2)
    pid, _ = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


ORPHANS = """
import os, signal, sys
from lbq.data.workers import map_in_order
def who(step): return os.getpid()
results = map_in_order(who, range(1000), num_workers=1)
print(next(results), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_leave_when_the_main_process_is_killed():
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker = int(done.stdout)
    for _ in range(50):
        if not Path(f"/proc/{worker}").exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"worker {worker} is an orphan")
