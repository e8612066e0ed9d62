"""Checkpoints: safetensors beside a JSON manifest that holds the SHA-256 of each of them.

One checkpoint is the files ``<step>.<part>.safetensors`` and, written last, ``<step>.json``:
without its manifest there is no checkpoint. Nothing is parsed before its hash was found right, for
neither safetensors nor torch notices a flipped bit; nothing is unpickled; no file names another.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from lbq.atomic_files import atomic_write, remove_temporary_files, sync_folder
from lbq.config_io import Document, digest, parse_json, read_fields
from lbq.errors import FormatError, RunError

_log = logging.getLogger(__name__)

FORMAT = 2
"""Version of what is written; a reader refuses others."""

Part = Mapping[str, Tensor]
"""The tensors of one file, by name."""

_MANIFEST = re.compile(r"(\d{9})\.json")
_OURS = re.compile(r"(\d{9})\.(?:json|[a-z]+\.safetensors)")
_PART_NAME = re.compile(r"[a-z]+")
_LARGEST_MANIFEST = 64 * 2**20
_FILE = {"bytes": int, "sha256": str}
_FIELDS = {"format": int, "step": int, "metadata": dict, "files": dict}


@dataclass(frozen=True)
class Checkpoint:
    """A state of training: tensors in named parts, and everything else as a document."""

    step: int
    parts: Mapping[str, Part]
    metadata: Document


class CheckpointFolder:
    """The checkpoints of one run, newest first in trust.

    Args:
        folder: where they lie; made if missing.
        keep: how many to keep, at least two: the newest may turn out to be damaged.
    """

    def __init__(self, folder: str | Path, *, keep: int = 2) -> None:
        if keep < 2:
            raise RunError(
                f"at least two checkpoints must be kept, got keep={keep}: the newest may turn out "
                f"to be damaged"
            )
        self.folder = Path(folder)
        self.keep = keep

    def steps(self) -> list[int]:
        """List the steps with a manifest, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (_MANIFEST.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        """Return where the manifest of a step lies."""
        return self.folder / f"{step:09d}.json"

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, read it back, and only then remove older ones."""
        try:
            self._write(checkpoint)
        except OSError:
            self.remove_partial()  # a disk that is full needs no half checkpoint
            raise
        self._read_verified(checkpoint.step)
        self._retire()
        return self.path(checkpoint.step)

    def load(self, step: int) -> Checkpoint:
        """Read one checkpoint, or raise :class:`FormatError` if a bit of it is not as written."""
        body, data = self._read_verified(step)
        parts = {
            part: parse_tensors(self._part_path(step, part), raw) for part, raw in data.items()
        }
        return Checkpoint(step=step, parts=parts, metadata=body["metadata"])

    def load_newest(self, *, quarantine: bool = False) -> Checkpoint | None:
        """Read the newest checkpoint that is whole; None if there never was one.

        A damaged one is reported loudly and passed over, and with ``quarantine`` renamed to
        ``*.corrupt``, so that it is not met again. If all are damaged it is an error: to start
        again from nothing is the user's decision.
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
                f"no checkpoint in {self.folder} is whole; restore one from a copy, or move the "
                f"folder away to start again from nothing"
            )
        return None

    def remove_partial(self) -> None:
        """Remove what a killed process left: temporary files, and parts without a manifest."""
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
            data = safetensors.torch.save({name: t.contiguous() for name, t in tensors.items()})
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
        """Read all bytes of a checkpoint and compare them with their hashes."""
        body = _read_manifest(self.path(step))
        if body["step"] != step:
            raise FormatError(f"{self.path(step)} is the manifest of step {body['step']}")
        files = {part: self._part_path(step, part) for part in body["files"]}
        return body, {
            part: _read_exactly(path, **body["files"][part]) for part, path in files.items()
        }

    def _retire(self) -> None:
        for step in self.steps()[: -self.keep]:
            _remove(self.path(step))  # first: parts without a manifest are swept, never believed
            for path in self.folder.glob(f"{step:09d}.*.safetensors"):
                _remove(path)
        sync_folder(self.folder)

    def _quarantine(self, step: int) -> None:
        for path in [self.path(step), *self.folder.glob(f"{step:09d}.*.safetensors")]:
            if path.exists():
                _put_aside(path)
        sync_folder(self.folder)


def _remove(path: Path) -> None:
    """Remove a file of ours; a folder in its place is not ours and is renamed."""
    if path.is_dir() and not path.is_symlink():
        _put_aside(path)
    else:
        path.unlink()


def _put_aside(path: Path) -> None:
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
        raise FormatError(f"{path} is no file: {error.strerror}") from error
    try:
        body = parse_json(data, str(path))["body"]
        is_whole = data == _manifest_bytes(body)
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path} is not a manifest: {error}") from error
    if not is_whole:
        raise FormatError(f"{path} does not have the SHA-256 that it names")
    return _check_body(path, body)


def _check_body(path: Path, body: Document) -> Document:
    """Check the outline of a manifest that is whole but may have been written by a stranger."""
    if isinstance(body, dict) and body.get("format", FORMAT) != FORMAT:
        raise RunError(
            f"{path} has format {body['format']!r}, this version of lbq reads format {FORMAT}; "
            f"take the version that wrote it"
        )
    read_fields(_FIELDS, body, f"the manifest {path}")
    for part, entry in body["files"].items():
        read_fields(_FILE, entry, f"file {part} of {path}")
    if not all(_PART_NAME.fullmatch(part) for part in body["files"]):
        raise FormatError(f"{path} names a part that is none: {', '.join(body['files'])[:80]}")
    return body


def _read_exactly(path: Path, *, bytes: int, sha256: str) -> bytes:  # noqa: A002 -- the manifest's
    try:
        size = path.stat().st_size
        if size != bytes:
            raise FormatError(f"{path} has {size:,} bytes, its manifest says {bytes:,}")
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FormatError(f"{path} is no file: {error.strerror}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise FormatError(f"{path} has SHA-256 {found}, its manifest says {sha256}")
    return data


def parse_tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    """Read the bytes of a safetensors file, or raise :class:`FormatError` with its path."""
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is not a safetensors file: {error}") from error
