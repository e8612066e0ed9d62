import os
import signal
import threading

import pytest

from lbq.train.preemption import PARENT_PID, catch_stop_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_raises_a_flag_and_nothing_else(number, code):
    before = signal.getsignal(number)
    with catch_stop_signals() as request:
        assert not request
        os.kill(os.getpid(), number)
        assert request
        assert request.exit_code == code
    assert signal.getsignal(number) is before


def test_the_second_interrupt_is_believed():
    before = signal.getsignal(signal.SIGINT)
    with catch_stop_signals():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_another_thread_than_the_main_one_can_train_too():
    seen = []

    def listen():
        with catch_stop_signals() as request:
            seen.append(bool(request))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_process_whose_guardian_died_stops(monkeypatch):
    monkeypatch.setenv(PARENT_PID, str(os.getppid()))
    with catch_stop_signals() as request:
        assert not request
    monkeypatch.setenv(PARENT_PID, str(os.getpid()))  # not our parent: as after its death
    with catch_stop_signals() as request:
        assert request
        assert request.exit_code == 143
