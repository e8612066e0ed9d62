"""The folder of a run: what lies where, and that one process at a time trains in it."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from lbq.durable import write_durably
from lbq.errors import RunError
from lbq.train.checkpoint import CheckpointFolder
from lbq.train.recipe import Recipe, read_recipe, write_recipe


class RunFolder:
    """``recipe.json``, ``journal.jsonl``, ``checkpoints/`` and a lock.

    Args:
        path: the folder; made when a run starts in it.
        keep: how many checkpoints to keep.
    """

    def __init__(self, path: str | Path, *, keep: int = 2) -> None:
        self.path = path = Path(path)
        self.checkpoints = CheckpointFolder(path / "checkpoints", keep=keep)
        self.journal = path / "journal.jsonl"
        self._recipe = path / "recipe.json"

    def write_recipe(self, recipe: Recipe) -> None:
        """Write down what is being trained."""
        write_durably(self._recipe, write_recipe(recipe).encode())

    def read_recipe(self) -> Recipe:
        """Read what was, or is being, trained here."""
        if not self._recipe.exists():
            raise RunError(f"{self.path} is not the folder of a run: it has no recipe.json")
        return read_recipe(self._recipe)

    @contextmanager
    def locked(self, *, wait_s: float = 0.0) -> Generator[None]:
        """Be the only process that trains here.

        The lock belongs to this process alone (not to children that inherit its files, as flock's
        would) and ends with it, however it ends.

        Args:
            wait_s: how long to wait for a process that is about to leave.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "lock", "a+") as file:
            end = time.monotonic() + wait_s
            while not _try_lock(file.fileno()):
                if time.monotonic() >= end:
                    file.seek(0)
                    raise RunError(
                        f"another process ({file.read().strip() or 'unknown'}) trains in "
                        f"{self.path}; wait for it, stop it, or take another folder with --out"
                    )
                time.sleep(0.2)
            file.truncate(0)
            file.write(f"process {os.getpid()} on {os.uname().nodename}")
            file.flush()
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
