"""Being asked to leave: a signal only raises a flag, which training reads between two steps."""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Sent by schedulers before they kill, and by Ctrl-C."""

PARENT_PID = "LBQ_PARENT_PID"
"""Environment variable: the process that started this one and must outlive it."""


class StopRequest:
    """Whether, and by which signal, this process was asked to stop.

    Nothing is saved inside the handler: it may interrupt anything. A second Ctrl-C is believed to
    be impatience and ends the process as if there were no handler. A process whose launcher or
    supervisor died stops too: it would train on unseen, in the way of its successor.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._parent_pid = int(os.environ.get(PARENT_PID, "0"))

    def __bool__(self) -> bool:
        is_orphan = self._parent_pid > 0 and os.getppid() != self._parent_pid
        return self.signal is not None or is_orphan

    @property
    def exit_code(self) -> int:
        """Return 128 + signal: 143 for SIGTERM, 130 for Ctrl-C."""
        return 128 + int(self.signal or signal.SIGTERM)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal is not None and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.signal = self.signal or signal.Signals(number)


@contextmanager
def catch_stop_signals() -> Generator[StopRequest]:
    """Turn SIGTERM and Ctrl-C into a flag inside the ``with`` block.

    Only a main thread can: in another one the flag stays down.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.handle) for number in STOP_SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
