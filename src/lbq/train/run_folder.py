"""The folder of a run: its files, its lock, and the trained network in it."""

import errno
import os
import re
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lbq.atomic_files import atomic_write
from lbq.data import open_data, steps_per_epoch
from lbq.errors import FormatError, RunError
from lbq.models.resnet import SpikingResNet
from lbq.train.checkpoint import CheckpointFolder, check_tensors, copy_tensors
from lbq.train.distributed import open_process_group
from lbq.train.evaluation import Evaluation, count_correct
from lbq.train.model_config import NETWORKS, ModelConfig, build_network
from lbq.train.optim import Precision
from lbq.train.recipe import Recipe, read_recipe, recipe_from_document, write_recipe

try:
    import fcntl
except ImportError:  # Windows: networks can be loaded, run and saved, but not trained by recipe
    fcntl = None

_OURS = "process "
"""First bytes of a lock file."""
_LONGEST = 200
"""Bytes of a lock file that are read."""

_held: set[tuple[int, int]] = set()
"""Folders (device and inode) that this process has locked."""


class RunFolder:
    """``recipe.json``, ``metrics.jsonl``, ``checkpoints/`` and a lock; created by a run."""

    def __init__(self, path: str | Path, *, keep: int = 2) -> None:
        self.path = path = Path(path)
        self.checkpoints = CheckpointFolder(path / "checkpoints", keep=keep)
        self.metrics_log = path / "metrics.jsonl"
        self._recipe = path / "recipe.json"

    def write_recipe(self, recipe: Recipe) -> None:
        """Write ``recipe.json``."""
        atomic_write(self._recipe, write_recipe(recipe).encode())

    def read_recipe(self) -> Recipe:
        """Read ``recipe.json``."""
        if not self._recipe.exists():
            raise RunError(f"{self.path} is not the folder of a run: it has no recipe.json")
        return read_recipe(self._recipe)

    @contextmanager
    def locked(self, *, wait_s: float = 0.0) -> Generator[None]:
        """Hold the lock of the folder inside the ``with`` block.

        The lock is not inherited by child processes, as one of flock would be, and is released when
        the process ends for any reason.

        Args:
            wait_s: how long to wait for another process to release it.
        """
        if fcntl is None:
            raise RunError(
                f"training locks its folder with fcntl, which {sys.platform} does not have; use "
                f"Linux or macOS, or your own training loop around lbq.models"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        with _held_once(self.path), _open_lock(self.path / "lock") as descriptor:
            end = time.monotonic() + wait_s
            while not _try_lock(descriptor):
                if time.monotonic() >= end:
                    holder = os.pread(descriptor, _LONGEST, 0).decode(errors="replace").strip()
                    raise RunError(
                        f"another process ({holder or 'unknown'}) trains in {self.path}; "
                        f"wait for it, stop it, or choose another folder with --out"
                    )
                time.sleep(0.2)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{_OURS}{os.getpid()} on {os.uname().nodename}".encode(), 0)
            yield


@contextmanager
def _held_once(folder: Path) -> Generator[None]:
    """Raise on a second lock by this process: fcntl would grant it and release both at once."""
    state = folder.stat()
    inode = state.st_dev, state.st_ino
    if inode in _held:
        raise RunError(f"this process trains in {folder} already; choose another folder")
    _held.add(inode)
    try:
        yield
    finally:
        _held.discard(inode)


@contextmanager
def _open_lock(path: Path) -> Generator[int]:
    """Open or create the lock file; links and files of other programs are not touched."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise _not_a_lock(path) from error
    try:
        state = os.fstat(descriptor)
        is_file = stat.S_ISREG(state.st_mode) and state.st_nlink <= 1
        start = os.pread(descriptor, _LONGEST, 0) if is_file else b""
        if not is_file or not (start == b"" or start.startswith(_OURS.encode())):
            raise _not_a_lock(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _not_a_lock(path: Path) -> RunError:
    return RunError(
        f"{path} is not a lock that lbq wrote (a link, a folder or another file); remove it, or "
        f"choose another folder with --out"
    )


def _try_lock(descriptor: int) -> bool:
    assert fcntl is not None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_BLOCK = re.compile(r"stages\.(\d{1,9})\.(\d{1,9})\.")


def load_trained(out: str | Path, *, step: int | None = None) -> tuple[SpikingResNet, Recipe, int]:
    """Load the network of a run, in eval mode: its moving average if it has one.

    Every file is compared with its SHA-256 before it is parsed. The folder is not modified.

    Args:
        out: the folder of the run.
        step: step of the checkpoint; the newest valid one by default.

    Returns:
        The network, its recipe, and the number of steps it was trained for.
    """
    checkpoints = RunFolder(out).checkpoints
    if step is not None and step not in checkpoints.steps():
        raise RunError(f"{out} has no checkpoint of step {step}; it has {checkpoints.steps()}")
    checkpoint = checkpoints.load_newest() if step is None else checkpoints.load(step)
    if checkpoint is None:
        raise RunError(f"{out} has no checkpoint; is it the folder of a run?")
    recipe = recipe_from_document(checkpoint.metadata.get("recipe"))
    num_classes = checkpoint.metadata.get("num_classes")
    if not isinstance(num_classes, int):
        raise FormatError(f"the checkpoint in {out} has no valid num_classes")
    prefix = "module." if "average" in checkpoint.parts else ""
    part = checkpoint.parts.get("average", checkpoint.parts.get("model", {}))
    named = {
        name.removeprefix(prefix): tensor
        for name, tensor in part.items()
        if name.startswith(prefix)
    }
    what = f"the checkpoint in {out}"
    model = network_from_tensors(recipe.model, named, num_classes=num_classes, what=what)
    return model.eval(), recipe, checkpoint.step


def network_from_tensors(
    config: ModelConfig, tensors: Mapping[str, Tensor], *, num_classes: int, what: str
) -> SpikingResNet:
    """Build a network and load its state dict; ``what`` names its source in error messages.

    The tensors are compared with the configuration before anything is allocated: a small file may
    describe a huge network.
    """
    expected = config.blocks or NETWORKS[config.name].shape.blocks
    found = {match.groups() for name in tensors if (match := _BLOCK.match(name))}
    counts = Counter(int(stage) for stage, _ in found)
    blocks = [counts[stage] for stage in sorted(counts)]
    if blocks != list(expected):
        raise FormatError(
            f"{what} does not belong to this network: it has stages of {blocks} blocks, the "
            f"configuration says {list(expected)}"
        )
    with torch.device("meta"):
        shapes = build_network(config, num_classes=num_classes).state_dict()
    check_tensors(tensors, shapes, what=what)
    model = build_network(config, num_classes=num_classes)
    copy_tensors(tensors, model.state_dict(), what=what)
    return model


def evaluate_run(
    out: str | Path,
    *,
    cache: str | Path,
    step: int | None = None,
    source: str | None = None,
    device: str = "auto",
    workers: int = 0,
    timeout_s: float = 300.0,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate the network of a run on its whole test set.

    Args:
        out: the folder of the run.
        cache: folder of decoded data sets.
        step: step of the checkpoint; the newest valid one by default.
        source: path or id of the data, if not that of the recipe.
        device: "auto", or a torch device name.
        workers: data loader processes per device.
        timeout_s: timeout of collectives.
        progress: called after every batch with the samples done and the total of this process.
    """
    model, recipe, found = load_trained(out, step=step)
    data_config = recipe.data
    if source is not None:
        data_config = replace(data_config, source=source)
    data = open_data(data_config, cache)
    with open_process_group(device, timeout_s=timeout_s) as group:
        model = model.to(group.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        counts = count_correct(
            model,
            data,
            group,
            precision=Precision(recipe.precision, group.device),
            batch=recipe.test_batch,
            num_workers=workers,
            channels_last=recipe.channels_last,
            progress=progress,
        )
    assert counts is not None  # no stop request here
    correct, count, loss = counts
    epoch = found // steps_per_epoch(data, recipe.batch)
    return Evaluation(step=found, epoch=epoch, correct=correct, count=count, loss=loss)
