"""Checkpoints: the training state, its files, and when it is saved.

One checkpoint is the files ``<step>.<part>.safetensors`` and, written last, the JSON manifest
``<step>.json`` with the SHA-256 of each of them; without its manifest there is no checkpoint.
Nothing is parsed before its hash is verified, nothing is unpickled, and no file names another.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from lbq.atomic_files import atomic_write, remove_temporary_files, sync_folder
from lbq.config_io import Document, digest, parse_json, read_fields
from lbq.errors import FormatError, RunError
from lbq.train.distributed import ProcessGroup
from lbq.train.evaluation import Evaluation, best_of
from lbq.train.metrics import Callback
from lbq.train.optim import Precision, optimizer_tensors

_log = logging.getLogger(__name__)

FORMAT = 2
"""Version of the manifest; others are rejected."""

_MANIFEST = re.compile(r"(\d{9})\.json")
_OURS = re.compile(r"(\d{9})\.(?:json|[a-z]+\.safetensors)")
_PART_NAME = re.compile(r"[a-z]+")
_LARGEST_MANIFEST = 64 * 2**20
_FILE = {"bytes": int, "sha256": str}
_FIELDS = {"format": int, "step": int, "metadata": dict, "files": dict}


@dataclass(frozen=True)
class Checkpoint:
    """A training state: tensors by part (one file each) and name, and JSON metadata."""

    step: int
    parts: Mapping[str, Mapping[str, Tensor]]
    metadata: Document


class CheckpointFolder:
    """The newest ``keep`` checkpoints of one run."""

    def __init__(self, folder: str | Path, *, keep: int = 2) -> None:
        if keep < 2:
            raise RunError(
                f"keep must be at least 2, got {keep}: the newest checkpoint may be damaged"
            )
        self.folder = Path(folder)
        self.keep = keep

    def steps(self) -> list[int]:
        """List the steps that have a manifest, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (_MANIFEST.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        """Return the path of a step's manifest."""
        return self.folder / f"{step:09d}.json"

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, verify it, and only then remove older ones."""
        try:
            self._write(checkpoint)
        except OSError:
            self.remove_partial()  # free the space of a full disk
            raise
        self._read_verified(checkpoint.step)
        self._remove_old()
        return self.path(checkpoint.step)

    def load(self, step: int) -> Checkpoint:
        """Read one checkpoint, or raise :class:`FormatError` if a hash does not match."""
        body, data = self._read_verified(step)
        parts = {
            part: parse_tensors(self._part_path(step, part), raw) for part, raw in data.items()
        }
        return Checkpoint(step=step, parts=parts, metadata=body["metadata"])

    def load_newest(self, *, quarantine: bool = False) -> Checkpoint | None:
        """Read the newest valid checkpoint; None if there never was one.

        Tries the newest first. A damaged one is logged and skipped, and with ``quarantine`` renamed
        to ``*.corrupt``. If all are damaged, that is an error: the user decides to start again.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.load(step)
            except FormatError as error:
                _log.error("checkpoint of step %d is damaged, falling back: %s", step, error)
                if quarantine:
                    self._quarantine(step)
        if steps or any(self.folder.glob("*.corrupt")):
            raise FormatError(
                f"all checkpoints in {self.folder} are damaged; restore one from a backup, or move "
                f"the folder away to start again"
            )
        return None

    def newest_metadata(self) -> Document | None:
        """Return the metadata of the newest manifest that can be read, without the tensors."""
        for step in reversed(self.steps()):
            try:
                return _read_manifest(self.path(step))["metadata"]
            except FormatError:  # load_newest reports it
                continue
        return None

    def remove_partial(self) -> None:
        """Remove files of a killed process: temporary files, and parts without a manifest."""
        if not self.folder.is_dir():
            return
        remove_temporary_files(self.folder)
        steps = set(self.steps())
        for path in self.folder.iterdir():
            match = _OURS.fullmatch(path.name)
            if match and int(match[1]) not in steps:
                _remove(path)

    def _write(self, checkpoint: Checkpoint) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, Document] = {}
        for part, tensors in checkpoint.parts.items():
            assert _PART_NAME.fullmatch(part), part
            data = safetensors.torch.save(_separate(tensors))
            atomic_write(self._part_path(checkpoint.step, part), data)
            files[part] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        body = {
            "format": FORMAT,
            "step": checkpoint.step,
            "files": files,
            "metadata": checkpoint.metadata,
        }
        atomic_write(self.path(checkpoint.step), _manifest_bytes(body))

    def _part_path(self, step: int, part: str) -> Path:
        return self.folder / f"{step:09d}.{part}.safetensors"

    def _read_verified(self, step: int) -> tuple[Document, dict[str, bytes]]:
        """Read all files of a checkpoint and compare them with their hashes."""
        body = _read_manifest(self.path(step))
        if body["step"] != step:
            raise FormatError(f"{self.path(step)} is the manifest of step {body['step']}")
        return body, {
            part: _read_exactly(self._part_path(step, part), **entry)
            for part, entry in body["files"].items()
        }

    def _remove_old(self) -> None:
        for step in self.steps()[: -self.keep]:
            _remove(self.path(step))  # first: parts without a manifest are never read
            for path in self.folder.glob(f"{step:09d}.*.safetensors"):
                _remove(path)
        sync_folder(self.folder)

    def _quarantine(self, step: int) -> None:
        for path in [self.path(step), *self.folder.glob(f"{step:09d}.*.safetensors")]:
            if path.exists():
                _rename_corrupt(path)
        sync_folder(self.folder)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make tensors contiguous, and copy those that share memory, such as tied weights."""
    found: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.contiguous()
        address = dense.untyped_storage().data_ptr()
        found[name] = dense.clone() if address in addresses else dense
        addresses.add(address)
    return found


def _remove(path: Path) -> None:
    """Remove a file; a folder in its place was not written by lbq and is renamed."""
    if path.is_dir() and not path.is_symlink():
        _rename_corrupt(path)
    else:
        path.unlink()


def _rename_corrupt(path: Path) -> None:
    aside, number = path.with_name(path.name + ".corrupt"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.{number}.corrupt")
    path.rename(aside)


def _manifest_bytes(body: Document) -> bytes:
    whole = {"body": body, "sha256": digest(body)}
    return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode()


def _read_manifest(path: Path) -> Document:
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise FormatError(f"{path} is larger than any manifest ({_LARGEST_MANIFEST:,} bytes)")
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FormatError(f"{path} is not a file: {error.strerror}") from error
    try:
        body = parse_json(data, str(path))["body"]
        is_intact = data == _manifest_bytes(body)
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path} is not a manifest: {error}") from error
    if not is_intact:
        raise FormatError(f"{path} does not match its own SHA-256")
    return _check_body(path, body)


def _check_body(path: Path, body: Document) -> Document:
    """Check the fields of a manifest that is intact but may come from another program."""
    if isinstance(body, dict) and body.get("format", FORMAT) != FORMAT:
        raise RunError(
            f"{path} has format {body['format']!r}, this version of lbq reads format {FORMAT}; "
            f"use the version that wrote it"
        )
    read_fields(_FIELDS, body, f"the manifest {path}")
    for part, entry in body["files"].items():
        read_fields(_FILE, entry, f"file {part} of {path}")
    if not all(_PART_NAME.fullmatch(part) for part in body["files"]):
        raise FormatError(f"{path} has invalid part names: {', '.join(body['files'])[:80]}")
    return body


def _read_exactly(path: Path, *, bytes: int, sha256: str) -> bytes:  # noqa: A002 -- the manifest's
    try:
        size = path.stat().st_size
        if size != bytes:
            raise FormatError(f"{path} has {size:,} bytes, expected {bytes:,} by its manifest")
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FormatError(f"{path} is not a file: {error.strerror}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise FormatError(f"{path} has SHA-256 {found}, expected {sha256} by its manifest")
    return data


def parse_tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    """Read the bytes of a safetensors file, or raise :class:`FormatError` with its path."""
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is not a safetensors file: {error}") from error


@dataclass
class Progress:
    """Progress of a run; the same on every process."""

    step: int = 0
    """Steps done."""
    skipped: int = 0
    """Consecutive steps skipped because of a non-finite loss or gradient."""
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])
    """Every evaluation so far, oldest first."""

    @property
    def best(self) -> Evaluation | None:
        """The best evaluation; chosen on the test set."""
        return best_of(self.evaluations)


@dataclass
class TrainingState:
    """Everything that a checkpoint needs to resume a run bit for bit."""

    model: nn.Module
    optimizer: Optimizer
    precision: Precision
    average: AveragedModel | None
    """Moving average of the weights, if the recipe asks for one."""
    progress: Progress = field(default_factory=Progress)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return every tensor of the state by part and name, without copying."""
        parts = {
            "model": dict(self.model.state_dict()),
            "training": optimizer_tensors(self.model, self.optimizer),
        }
        if self.average is not None:
            parts["average"] = dict(self.average.state_dict())
        return parts

    def checkpoint(self, metadata: Document) -> Checkpoint:
        """Return the state as a checkpoint, with further metadata."""
        scale = self.precision.scaler.state_dict()
        metadata = {**metadata, "progress": asdict(self.progress), "loss_scale": scale}
        return Checkpoint(step=self.progress.step, parts=self.tensors(), metadata=metadata)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore tensors and metadata of a checkpoint."""
        mine = self.tensors()
        if set(mine) != set(checkpoint.parts):
            raise FormatError(
                f"the checkpoint has the parts {sorted(checkpoint.parts)}, this run {sorted(mine)}"
            )
        for part, tensors in mine.items():
            copy_tensors(checkpoint.parts[part], tensors, what=f"part {part!r} of the checkpoint")
        self.restore_metadata(checkpoint.metadata)

    def restore_metadata(self, metadata: Document) -> None:
        """Restore progress and loss scale."""
        self.progress = read_progress(metadata)
        try:
            self.precision.scaler.load_state_dict(metadata["loss_scale"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise FormatError(
                f"the loss scale of the checkpoint cannot be restored: {error}"
            ) from error

    def broadcast(self, group: ProcessGroup) -> None:
        """Broadcast the tensors of the first process."""
        for tensors in self.tensors().values():
            for tensor in tensors.values():
                group.broadcast_(tensor)


def read_progress(metadata: Document) -> Progress:
    """Read the progress from the metadata of a checkpoint."""
    try:
        fields: dict[str, Any] = dict(metadata["progress"])
        evaluations = [Evaluation(**found) for found in fields.pop("evaluations")]
        return Progress(**fields, evaluations=evaluations)
    except (KeyError, TypeError) as error:
        raise FormatError(f"the checkpoint has no valid progress: {error}") from error


@torch.no_grad()
def copy_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor], *, what: str) -> None:
    """Copy values into tensors of the same names, shapes and dtypes, or raise FormatError."""
    check_tensors(source, target, what=what)
    for name, tensor in target.items():
        tensor.copy_(source[name])


def check_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor], *, what: str) -> None:
    """Raise :class:`FormatError` unless both have the same names, shapes and dtypes."""
    missing, unexpected = sorted(set(target) - set(source)), sorted(set(source) - set(target))
    if missing or unexpected:
        raise FormatError(
            f"{what} does not belong to this network: {len(missing)} tensors are missing "
            f"{missing[:3]}, {len(unexpected)} are unexpected {unexpected[:3]}"
        )
    for name, tensor in target.items():
        found = source[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise FormatError(
                f"{what}: {name} must be {tensor.dtype} {tuple(tensor.shape)}, got {found.dtype} "
                f"{tuple(found.shape)}"
            )


MAX_SAVE_FAILURES = 3
"""Consecutive failed saves after which the run ends."""


class Saver:
    """Saves checkpoints periodically, and logs each of them; only the first process has one."""

    def __init__(
        self,
        folder: CheckpointFolder,
        log: Callback,
        *,
        every_s: float = 300.0,
        every_steps: int | None = None,
    ) -> None:
        self._folder = folder
        self._log = log
        self._every_s = every_s
        self._every_steps = every_steps
        self._last = time.monotonic()
        self._failures = 0

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due."""
        by_step = self._every_steps is not None and step % self._every_steps == 0
        return by_step or time.monotonic() - self._last >= self._every_s

    def save(self, checkpoint: Checkpoint, *, is_last: bool = False) -> None:
        """Save, or log the failure and try again next time; raise if ``is_last``."""
        start = self._last = time.monotonic()
        step = checkpoint.step
        try:
            path = self._folder.save(checkpoint)
        except OSError as error:
            self._failures += 1
            _log.error("step %d could not be saved (%d in a row): %s", step, self._failures, error)
            self._log({"event": "save_failed", "step": step, "error": str(error)})
            if is_last or self._failures >= MAX_SAVE_FAILURES:
                raise RunError(
                    f"step {step} could not be saved: {error}; the last checkpoint is of step "
                    f"{max(self._folder.steps(), default='none')}. Free disk space and restart: "
                    f"the run resumes from there"
                ) from error
            return
        self._failures = 0
        seconds = round(time.monotonic() - start, 3)
        self._log({"event": "checkpoint", "step": step, "path": str(path), "seconds": seconds})
