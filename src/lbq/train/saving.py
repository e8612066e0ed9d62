"""When a run saves, and what happens when it cannot."""

import logging
import time

from lbq.errors import RunError
from lbq.train.checkpoint import Checkpoint, CheckpointFolder
from lbq.train.metrics import Callback

_log = logging.getLogger(__name__)

MAX_SAVE_FAILURES = 3
"""Saves in a row that may fail, for want of room or otherwise, before the run gives up."""


class Saver:
    """Saves checkpoints every so often; the first process has one, the others none.

    Saving changes nothing in the state, so when it happens is nobody's business but this one's.

    Args:
        folder: where to.
        tell: is told of every checkpoint and every failure.
        every_s: seconds between two.
        every_steps: steps between two, if not only the clock decides.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        tell: Callback,
        *,
        every_s: float = 300.0,
        every_steps: int | None = None,
    ) -> None:
        self._folder = folder
        self._tell = tell
        self._every_s = every_s
        self._every_steps = every_steps
        self._last = time.monotonic()
        self._failures = 0

    def is_due(self, step: int) -> bool:
        """Say whether it is time again."""
        by_step = self._every_steps is not None and step % self._every_steps == 0
        return by_step or time.monotonic() - self._last >= self._every_s

    def save(self, checkpoint: Checkpoint, *, must: bool = False) -> None:
        """Save, or if that fails try again next time; the last good checkpoint stays.

        Args:
            checkpoint: the state.
            must: whether there is no next time.
        """
        start = time.monotonic()
        self._last = start
        step = checkpoint.step
        try:
            path = self._folder.save(checkpoint)
        except OSError as error:
            self._failures += 1
            _log.error("step %d could not be saved (%d in a row): %s", step, self._failures, error)
            self._tell({"event": "save_failed", "step": step, "error": str(error)})
            if must or self._failures >= MAX_SAVE_FAILURES:
                raise RunError(
                    f"step {step} could not be saved: {error}; the last good checkpoint is of step "
                    f"{max(self._folder.steps(), default='none')}. Make room and start again: the "
                    f"run continues from there"
                ) from error
            return
        self._failures = 0
        seconds = round(time.monotonic() - start, 3)
        self._tell({"event": "checkpoint", "step": step, "path": str(path), "seconds": seconds})
