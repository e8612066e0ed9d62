import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lbq.train.supervisor import PARENT_PID, RestartPolicy, Supervisor, catch_stop_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_raises_a_flag_and_nothing_else(number, code):
    before = signal.getsignal(number)
    with catch_stop_signals() as request:
        assert not request
        os.kill(os.getpid(), number)
        assert request
        assert request.exit_code == code
    assert signal.getsignal(number) is before


def test_the_second_interrupt_raises():
    before = signal.getsignal(signal.SIGINT)
    with catch_stop_signals():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_thread_other_than_the_main_one_can_train():
    seen = []

    def listen():
        with catch_stop_signals() as request:
            seen.append(bool(request))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_process_whose_parent_died_stops(monkeypatch):
    monkeypatch.setenv(PARENT_PID, str(os.getppid()))
    with catch_stop_signals() as request:
        assert not request
    monkeypatch.setenv(PARENT_PID, str(os.getpid()))  # not our parent: as after its death
    with catch_stop_signals() as request:
        assert request
        assert request.exit_code == 143


QUICK = RestartPolicy(first_wait_s=0.01, max_wait_s=0.05, max_idle_crashes=3)

pytestmark = pytest.mark.multi


@pytest.fixture
def path(tmp_path):
    return tmp_path / "attempts"


def job(code, path):
    """A job that counts its attempts in a file; ``attempt`` is the number of this one."""
    preamble = (
        f"import os, sys, time; path = {str(path)!r}\n"
        "attempt = 1 + os.path.getsize(path) if os.path.exists(path) else 1\n"
        "open(path, 'a').write('x')\n"
    )
    return [sys.executable, "-S", "-c", preamble + code]


def attempts(path):
    return path.stat().st_size if path.exists() else 0


def test_a_job_that_crashes_is_started_again_until_it_succeeds(path, caplog):
    crash = "os.kill(os.getpid(), 9) if attempt < 6 else None"
    with caplog.at_level(logging.WARNING):
        supervisor = Supervisor(job(crash, path), progress=lambda: attempts(path), policy=QUICK)
        assert supervisor.run() == 0
    assert attempts(path) == 6
    assert "crash 5 (exit 137)" in caplog.text


def test_without_progress_it_gives_up(path, caplog):
    supervisor = Supervisor(job("sys.exit(70)", path), progress=lambda: 0, policy=QUICK)
    with caplog.at_level(logging.ERROR):
        assert supervisor.run() == 70
    assert attempts(path) == 3
    assert "3 consecutive crashes without progress" in caplog.text


@pytest.mark.parametrize("code", [0, 1, 2])
def test_success_and_user_errors_are_not_repeated(path, code):
    supervisor = Supervisor(job(f"sys.exit({code})", path), progress=lambda: 0, policy=QUICK)
    assert supervisor.run() == code
    assert attempts(path) == 1


def test_the_waits_double_until_there_is_progress(monkeypatch):
    waits, reached = [], iter([0] * 5 + [1] * 9)
    policy = RestartPolicy(first_wait_s=1.0, max_wait_s=3.0, max_idle_crashes=4)
    supervisor = Supervisor(["-"], progress=lambda: next(reached), policy=policy)
    monkeypatch.setattr(supervisor, "_attempt", lambda: 70)
    monkeypatch.setattr(supervisor, "_sleep", waits.append)
    # progress is asked before and after every attempt: attempt 3 is the one that moves on
    assert supervisor.run() == 70
    assert waits == [1, 2, 1, 1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_nothing_is_restarted(path, number):
    work = (
        "import signal; number = int(sys.argv[1])\n"
        "signal.signal(number, lambda *a: sys.exit(128 + number))\n"
        "open(path + '.ready', 'w'); time.sleep(600)"
    )
    program = (
        "import sys; from lbq.train.supervisor import Supervisor\n"
        "sys.exit(Supervisor(sys.argv[1:], progress=lambda: 0).run())"
    )
    command = [sys.executable, "-c", program, *job(work, path), str(int(number))]
    process = subprocess.Popen(command)
    end = time.monotonic() + 240
    while not os.path.exists(f"{path}.ready"):
        assert time.monotonic() < end, "the job never started"
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(120) == 128 + number
    assert attempts(path) == 1
