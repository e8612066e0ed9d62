"""The folder of a run: what lies where, and that one process at a time trains in it."""

import errno
import os
import stat
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from lbq.atomic_files import atomic_write
from lbq.errors import RunError
from lbq.train.checkpoint import CheckpointFolder
from lbq.train.recipe import Recipe, read_recipe, write_recipe

try:
    import fcntl
except ImportError:  # Windows: networks are loaded, run and saved there, not trained by recipe
    fcntl = None

_OURS = "process "
"""How the text in a lock begins."""
_LONGEST = 200
"""Bytes of it that are read."""

_held: set[tuple[int, int]] = set()
"""Folders (device and inode) that this process has locked."""


class RunFolder:
    """``recipe.json``, ``metrics.jsonl``, ``checkpoints/`` and a lock.

    Args:
        path: the folder; made when a run starts in it.
        keep: how many checkpoints to keep.
    """

    def __init__(self, path: str | Path, *, keep: int = 2) -> None:
        self.path = path = Path(path)
        self.checkpoints = CheckpointFolder(path / "checkpoints", keep=keep)
        self.metrics_log = path / "metrics.jsonl"
        self._recipe = path / "recipe.json"

    def write_recipe(self, recipe: Recipe) -> None:
        """Write down what is being trained."""
        atomic_write(self._recipe, write_recipe(recipe).encode())

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
        if fcntl is None:
            raise RunError(
                f"a run locks its folder with fcntl, which {sys.platform} does not have; train on "
                f"Linux or macOS, or write a training loop of your own around lbq.models"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        with _held_once(self.path), _open_lock(self.path / "lock") as descriptor:
            end = time.monotonic() + wait_s
            while not _try_lock(descriptor):
                if time.monotonic() >= end:
                    holder = os.pread(descriptor, _LONGEST, 0).decode(errors="replace").strip()
                    raise RunError(
                        f"another process ({holder or 'unknown'}) trains in {self.path}; "
                        f"wait for it, stop it, or take another folder with --out"
                    )
                time.sleep(0.2)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{_OURS}{os.getpid()} on {os.uname().nodename}".encode(), 0)
            yield


@contextmanager
def _held_once(folder: Path) -> Generator[None]:
    """Refuse a second lock of this process: the system would grant it, and drop both with one."""
    state = folder.stat()
    place = state.st_dev, state.st_ino
    if place in _held:
        raise RunError(f"this process trains in {folder} already; take another folder")
    _held.add(place)
    try:
        yield
    finally:
        _held.discard(place)


@contextmanager
def _open_lock(path: Path) -> Generator[int]:
    """Open the lock file, or make it; what else may lie there is neither followed nor changed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise RunError(_not_ours(path)) from error
    try:
        state = os.fstat(descriptor)
        is_file = stat.S_ISREG(state.st_mode) and state.st_nlink <= 1
        start = os.pread(descriptor, _LONGEST, 0) if is_file else b""
        if not is_file or not (start == b"" or start.startswith(_OURS.encode())):
            raise RunError(_not_ours(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _not_ours(path: Path) -> str:
    return (
        f"{path} is not a lock that lbq wrote (a link, a folder or another file); remove it, or "
        f"take another folder with --out"
    )


def _try_lock(descriptor: int) -> bool:
    assert fcntl is not None  # refused before
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
