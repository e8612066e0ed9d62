"""Starting a job again after it crashed: in fresh processes, with a fresh rendezvous.

It knows nothing of training. The job itself finds its last checkpoint; all that is asked of it is
an exit code that tells a crash from a mistake, and a way to see that it moves on.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from lbq.train.preemption import PARENT_PID, STOP_SIGNALS

_log = logging.getLogger(__name__)

NO_RESTART = (1, 2)
"""Exit codes of a job that would only fail again: a user's error, a wrong command line."""


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How long a supervisor waits, and when it gives up."""

    first_wait_s: float = 1.0
    """Before the first restart; doubled with every crash that brought no progress."""
    max_wait_s: float = 60.0
    """Largest wait."""
    max_idle_crashes: int = 10
    """Crashes in a row without any progress after which it gives up. There is no other limit: a
    run of weeks on preemptible machines may crash as often as it likes while it moves on."""


class Supervisor:
    """Runs a command until it succeeds, is mistaken, or stops making progress.

    Args:
        command: the job.
        progress: a number that grows when the job got further, such as its last checkpoint's step.
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
        """Return the exit code of the last attempt, or 128 + signal if we were told to stop."""
        before = {number: signal.signal(number, self._pass_on) for number in STOP_SIGNALS}
        try:
            return self._keep_running()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _keep_running(self) -> int:
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
                _log.error("%d crashes in a row without progress (exit %d): giving up", idle, code)
                return code
            wait = min(self._policy.first_wait_s * 2 ** max(0, idle - 1), self._policy.max_wait_s)
            _log.warning("crash %d (exit %d); starting again in %.0f s", attempt, code, wait)
            self._sleep(wait)
            if self._stopped_by is not None:
                return 128 + int(self._stopped_by)

    def _attempt(self) -> int:
        """Run the job once, in a session of its own, so that Ctrl-C reaches it through us only."""
        environment = {**os.environ, PARENT_PID: str(os.getpid())}
        self._job = subprocess.Popen(  # noqa: S603 -- our own command, no shell
            self._command, env=environment, start_new_session=True
        )
        if self._stopped_by is not None:  # the signal came while there was nobody to pass it to
            self._job.send_signal(self._stopped_by)
        code = self._job.wait()
        return code if code >= 0 else 128 - code

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._stopped_by is None and time.monotonic() < end:
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self._stopped_by is None:
            self._stopped_by = signal.Signals(number)
            if self._job is not None and self._job.poll() is None:
                self._job.send_signal(number)
