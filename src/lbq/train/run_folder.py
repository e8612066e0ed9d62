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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from lbq.atomic_files import atomic_write
from lbq.config_io import Document, DocumentError, dump_json, from_document, to_document
from lbq.data import Data, open_data
from lbq.data.sampler import num_steps
from lbq.data.user_data import UserData
from lbq.errors import FormatError, RunError
from lbq.train.checkpoint import (
    CheckpointFolder,
    check_tensors,
    copy_tensors,
    read_progress,
)
from lbq.train.distributed import open_process_group
from lbq.train.evaluation import Evaluation, evaluate
from lbq.train.loss import Loss, Metric
from lbq.train.metrics import Record, read_metrics_log
from lbq.train.model_config import (
    NETWORKS,
    SPIKEFORMERS,
    ModelConfig,
    Network,
    build_network,
)
from lbq.train.optim import Precision, PrecisionKind
from lbq.train.provenance import structure_digest
from lbq.train.recipe import Recipe, read_recipe, recipe_from_document
from lbq.train.train_config import TrainConfig

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
    """Settings, ``metrics.jsonl``, ``checkpoints/`` and a lock; created by a run.

    The settings of a run by recipe are ``recipe.json``, those of any other run ``config.json``.
    """

    def __init__(self, path: str | Path, *, keep: int = 2) -> None:
        self.path = path = Path(path)
        self.checkpoints = CheckpointFolder(path / "checkpoints", keep=keep)
        self.metrics_log = path / "metrics.jsonl"
        self._recipe = path / "recipe.json"

    @property
    def has_recipe(self) -> bool:
        """Whether the run was trained by a recipe."""
        return self._recipe.exists()

    def write_settings(self, config: TrainConfig) -> None:
        """Write ``recipe.json`` or ``config.json``."""
        path = self._recipe if isinstance(config, Recipe) else self.path / "config.json"
        atomic_write(path, dump_json(to_document(config)).encode())

    def read_recipe(self) -> Recipe:
        """Read ``recipe.json``."""
        if not self._recipe.exists():
            raise RunError(f"{self.path} is not the folder of a run: it has no recipe.json")
        return read_recipe(self._recipe)

    def precision(self) -> PrecisionKind | None:
        """Return the precision of the newest checkpoint; None without one."""
        found = self.checkpoints.newest_metadata() or {}
        settings = found.get("recipe", found.get("config"))
        kind = settings.get("precision") if isinstance(settings, dict) else None
        return kind if kind in get_args(PrecisionKind) else None

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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            found = "a link to nothing" if self.path.is_symlink() else "a file, or below one"
            raise RunError(
                f"{self.path} cannot be the folder of a run: it is {found}; choose another folder "
                f"(--out)"
            ) from error
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
        raise RunError(f"this process already trains in {folder}; choose another folder")
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


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that was read from its folder."""

    folder: Path
    """The folder."""
    model: nn.Module
    """The trained network, in eval mode: its moving average if it has one."""
    config: TrainConfig
    """Training settings; for a run by recipe the whole :class:`lbq.train.recipe.Recipe`."""
    step: int
    """Steps that the network was trained for."""
    evaluations: tuple[Evaluation, ...]
    """Evaluations up to this step, oldest first."""
    metadata: Document
    """What the checkpoint says about code, data and versions."""

    @property
    def recipe(self) -> Recipe:
        """The recipe; an error if the run was trained by :func:`lbq.fit`."""
        if isinstance(self.config, Recipe):
            return self.config
        raise RunError(f"{self.folder} was not trained by a recipe, so its data are unknown")

    @property
    def metrics(self) -> list[Record]:
        """The metrics log as a table: one row per logged step and evaluation, as dictionaries."""
        records = read_metrics_log(RunFolder(self.folder).metrics_log)
        return [record for record in records if record["event"] in ("train", "evaluation")]


def load_run(folder: str | Path, model: nn.Module | None = None, *, step: int | None = None) -> Run:
    """Load a run: its network, settings and metrics.

    Every file is compared with its SHA-256 before it is parsed. The folder is not modified.

    Args:
        folder: the folder of the run.
        model: a network of the same structure as the one that :func:`lbq.fit` trained, to load the
            weights into; a run by recipe builds its own.
        step: step of the checkpoint; the newest valid one by default.

    Example:
        >>> recipe = lbq.train.RECIPES["smoke"]()
        >>> outcome = lbq.train.train(recipe, "runs/smoke", lbq.RunOptions(stop_at=2))
        >>> run = lbq.load_run("runs/smoke")
        >>> run.step, run.config.batch
        (2, 50)
    """
    folder = Path(folder)
    checkpoints = RunFolder(folder).checkpoints
    if step is not None and step not in checkpoints.steps():
        raise RunError(f"{folder} has no checkpoint of step {step}; it has {checkpoints.steps()}")
    checkpoint = checkpoints.load_newest() if step is None else checkpoints.load(step)
    if checkpoint is None:
        raise RunError(f"{folder} has no checkpoint; is it the folder of a run?")
    metadata = checkpoint.metadata
    prefix = "module." if "average" in checkpoint.parts else ""
    part = checkpoint.parts.get("average", checkpoint.parts.get("model", {}))
    tensors = {
        name.removeprefix(prefix): tensor
        for name, tensor in part.items()
        if name.startswith(prefix)
    }
    what = f"the checkpoint in {folder}"
    if "config" in metadata:
        config = config_from_document(metadata["config"], what)
        if model is None:
            raise RunError(
                f"{folder} was trained by lbq.fit, which does not store how its model is built; "
                f"pass a model of the same structure: lbq.load_run(folder, model), or --model "
                f"my_recipe.py"
            )
        load_tensors_into(model, tensors, structure=metadata.get("structure"), what=what)
    else:
        config = recipe_from_document(metadata.get("recipe"))
        num_classes = metadata.get("num_classes")
        if not isinstance(num_classes, int):
            raise FormatError(f"{what} has no valid num_classes")
        if model is not None:
            raise RunError(f"{folder} was trained by a recipe that builds the model; pass no model")
        model = network_from_tensors(config.model, tensors, num_classes=num_classes, what=what)
        model.preprocessing = config.data.preprocessing
    return Run(
        folder=folder,
        model=model.eval(),
        config=config,
        step=checkpoint.step,
        evaluations=tuple(read_progress(metadata).evaluations),
        metadata=metadata,
    )


def config_from_document(document: Document, what: str) -> TrainConfig:
    """Read training settings; ``what`` names their source in error messages."""
    try:
        return from_document(TrainConfig, document)
    except DocumentError as error:
        raise FormatError(f"{what} has no valid training settings: {error}") from error


def load_tensors_into(
    model: nn.Module, tensors: Mapping[str, Tensor], *, structure: str | None, what: str
) -> None:
    """Load a state dict into the caller's model, if both have the same structure.

    Args:
        model: the model, changed in place.
        tensors: the state dict.
        structure: digest of the model that the tensors come from.
        what: their source, for error messages.
    """
    check_tensors(tensors, model.state_dict(), what=what)
    if structure != structure_digest(model):
        raise RunError(
            f"the model has the tensors of {what}, but other modules or settings (classes, "
            f"strides, levels, timesteps); build it as in the run"
        )
    copy_tensors(tensors, model.state_dict(), what=what)


def network_from_tensors(
    config: ModelConfig, tensors: Mapping[str, Tensor], *, num_classes: int, what: str
) -> Network:
    """Build a network and load its state dict; ``what`` names its source in error messages.

    The tensors are compared with the configuration before anything is allocated: a small file may
    describe a huge network.
    """
    expected = config.blocks or {**NETWORKS, **SPIKEFORMERS}[config.name].shape.blocks
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
    run = load_run(out, step=step)
    data = open_run_data(run, cache=cache, source=source)
    return evaluate_model(
        run, data, device=device, workers=workers, timeout_s=timeout_s, progress=progress
    )


def open_run_data(run: Run, *, cache: str | Path, source: str | None = None) -> Data:
    """Open the data of a run by recipe, from ``source`` if that is given."""
    config = run.recipe.data
    return open_data(config if source is None else replace(config, source=source), cache)


def evaluate_model(
    run: Run,
    data: Data | UserData,
    *,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    device: str = "auto",
    workers: int = 0,
    timeout_s: float = 300.0,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate the network of a run on test samples, as the run did while it was trained."""
    config = run.config
    with open_process_group(device, timeout_s=timeout_s) as group:
        model = run.model.to(group.device)
        if config.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        scores = evaluate(
            model,
            data,
            group,
            precision=Precision(config.precision, group.device),
            batch=config.test_batch,
            loss=loss,
            metrics=metrics,
            seed=config.seed,
            num_workers=workers,
            channels_last=config.channels_last,
            progress=progress,
        )
    assert scores is not None  # no stop request here
    epoch = run.step // num_steps(data.num_train, config.batch)
    return Evaluation(step=run.step, epoch=epoch, **asdict(scores))
