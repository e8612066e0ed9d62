import os
import signal
import subprocess
import sys

import pytest

from lbq.train.preemption import GUARDIAN, listening_for_stop, shielded


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_raises_a_flag_and_nothing_else(number, code):
    before = signal.getsignal(number)
    with listening_for_stop() as request:
        assert not request
        os.kill(os.getpid(), number)
        assert request
        assert request.exit_code == code
    assert signal.getsignal(number) is before


def test_the_second_interrupt_is_believed():
    before = signal.getsignal(signal.SIGINT)
    with listening_for_stop():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_child_born_behind_the_shield_does_not_see_the_signal():
    with listening_for_stop() as request:
        with shielded():
            child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            os.kill(os.getpid(), signal.SIGTERM)
            assert not request  # held back
        assert request  # and delivered
        child.send_signal(signal.SIGTERM)
        child.communicate(b"\n", timeout=30)
    assert child.returncode == 0


def test_a_process_whose_guardian_died_stops(monkeypatch):
    monkeypatch.setenv(GUARDIAN, str(os.getppid()))
    with listening_for_stop() as request:
        assert not request
    monkeypatch.setenv(GUARDIAN, str(os.getpid()))  # not our parent: as after its death
    with listening_for_stop() as request:
        assert request
        assert request.exit_code == 143
