"""Stop requests and restarts: signals set a flag, a supervisor restarts a crashed job.

The supervisor knows nothing about training. The job resumes from its last checkpoint; it only has
to return an exit code that tells a crash from a user error, and a number that shows progress.
"""

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType

_log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""SIGTERM is sent by schedulers before they kill, SIGINT by Ctrl-C."""

PARENT_PID = "LBQ_PARENT_PID"
"""Environment variable: id of the parent process; if the parent dies, the job stops."""


class StopRequest:
    """Stop flag: set by a signal, or when the launcher or supervisor has died.

    The handler only sets the flag, which training reads between two steps. A second Ctrl-C raises
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._parent_pid = int(os.environ.get(PARENT_PID, "0"))

    def __bool__(self) -> bool:
        is_orphan = self._parent_pid > 0 and os.getppid() != self._parent_pid
        return self.signal is not None or is_orphan

    @property
    def exit_code(self) -> int:
        """128 + signal: 143 for SIGTERM, 130 for Ctrl-C."""
        return 128 + int(self.signal or signal.SIGTERM)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.signal is not None and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.signal = self.signal or signal.Signals(number)


@contextmanager
def catch_stop_signals() -> Generator[StopRequest]:
    """Turn SIGTERM and Ctrl-C into a flag inside the ``with`` block.

    Python handles signals in the main thread only; in other threads the flag is never set.
    """
    request = StopRequest()
    is_main = threading.current_thread() is threading.main_thread()
    with _stop_signals_to(request.handle) if is_main else nullcontext():
        yield request


@contextmanager
def _stop_signals_to(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


NO_RESTART = (1, 2)
"""Exit codes of user errors and wrong command lines, which would only fail again."""


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How long a supervisor waits before a restart, and when it gives up."""

    first_wait_s: float = 1.0
    """Wait before the first restart; doubled after every crash without progress."""
    max_wait_s: float = 60.0
    """Upper limit of the wait."""
    max_idle_crashes: int = 10
    """Consecutive crashes without progress before giving up. Crashes with progress in between are
    not limited."""


class Supervisor:
    """Restarts a command until it succeeds, reports a user error, or makes no progress.

    Args:
        command: the job.
        progress: returns a number that grows with the job, such as its last checkpoint's step.
        policy: how long to wait, and when to give up.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        progress: Callable[[], int],
        policy: RestartPolicy | None = None,
    ) -> None:
        self._command = list(command)
        self._progress = progress
        self._policy = RestartPolicy() if policy is None else policy
        self._job: subprocess.Popen[bytes] | None = None
        self._stopped_by: signal.Signals | None = None

    def run(self) -> int:
        """Return the exit code of the last attempt, or 128 + signal after a stop signal."""
        with _stop_signals_to(self._forward_signal):
            return self._run_until_done()

    def _run_until_done(self) -> int:
        idle, attempt = 0, 0
        while True:
            reached = self._progress()
            code = self._attempt()
            if self._stopped_by is not None:
                return code if code == 0 else 128 + int(self._stopped_by)
            if code == 0 or code in NO_RESTART:
                return code
            attempt += 1
            idle = 0 if self._progress() > reached else idle + 1
            if idle >= self._policy.max_idle_crashes:
                _log.error(
                    "%d consecutive crashes without progress (exit %d): giving up", idle, code
                )
                return code
            wait = min(self._policy.first_wait_s * 2 ** max(0, idle - 1), self._policy.max_wait_s)
            _log.warning("crash %d (exit %d); restarting in %.0f s", attempt, code, wait)
            self._sleep(wait)
            if self._stopped_by is not None:
                return 128 + int(self._stopped_by)

    def _attempt(self) -> int:
        """Run the job once, in its own session: Ctrl-C then reaches it only once."""
        environment = {**os.environ, PARENT_PID: str(os.getpid())}
        self._job = subprocess.Popen(  # noqa: S603 -- no shell
            self._command, env=environment, start_new_session=True
        )
        if self._stopped_by is not None:  # the signal arrived before the job started
            self._job.send_signal(self._stopped_by)
        code = self._job.wait()
        return code if code >= 0 else 128 - code

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._stopped_by is None and time.monotonic() < end:
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    def _forward_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopped_by is None:
            self._stopped_by = signal.Signals(number)
            if self._job is not None and self._job.poll() is None:
                self._job.send_signal(number)
