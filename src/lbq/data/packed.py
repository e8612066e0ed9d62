"""Data sets decoded once: memory-mapped arrays on disk, with their hashes in a manifest.

A small data set is decoded on first use and packed into one array per split under the cache folder;
every later run, rank and worker maps the same file. The manifest is written last and holds the
SHA-256 of every array, which is checked whenever a set is opened: a torn or flipped file is
noticed, put aside and packed anew. Two processes may pack at once; the first to finish wins.
"""

import hashlib
import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lbq.config_io import read_json
from lbq.data.splits import Splits
from lbq.errors import FormatError

FORMAT = 2
"""Version of packing. It is part of a set's key, so sets that other versions packed, with other
pixels for the same file, are not found."""
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class SplitContents:
    """The contents of one split to pack: labels, and samples in the same order."""

    labels: NDArray[np.int64]
    shape: tuple[int, ...]
    """Shape of one sample."""
    dtype: type[np.uint8] | type[np.uint16] | type[np.int64]
    samples: Iterable[NDArray[Any]]


class PackedSplit:
    """The samples of one split in a memory-mapped file.

    It travels to other processes as a path: they map the file themselves.
    """

    def __init__(self, path: Path, labels: NDArray[np.int64]) -> None:
        self.path = path
        self.labels = labels
        self._samples: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)

    def read(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Copy the samples out: ``[len(index), *shape]``."""
        return np.asarray(self._samples[index])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self._samples.shape[1:]

    def __reduce__(self) -> tuple[type["PackedSplit"], tuple[Path, NDArray[np.int64]]]:
        return PackedSplit, (self.path, self.labels)


def open_packed(
    cache: Path,
    *,
    identity: Mapping[str, object],
    num_classes: int,
    contents: Callable[[], Mapping[str, SplitContents]],
) -> Splits:
    """Open a packed data set, or pack it first.

    Args:
        cache: folder that holds all packed sets.
        identity: values that distinguish this set from others, such as source and decoding.
        num_classes: number of classes.
        contents: returns the splits "train" and "test"; called only if they are not packed yet.
    """
    whole = json.dumps({"format": FORMAT, "identity": dict(identity)}, sort_keys=True)
    key = hashlib.sha256(whole.encode()).hexdigest()[:16]
    folder = cache / key
    if folder.exists():
        try:
            return _open(folder)
        except FormatError as error:
            aside = folder.with_name(f"{key}.damaged-{time.time_ns()}")
            warnings.warn(f"{error}; moved to {aside}, packing again", stacklevel=2)
            with suppress(FileNotFoundError):  # another process may have moved it already
                folder.rename(aside)
    _pack(folder, identity, num_classes, contents())
    return _open(folder)


def _pack(
    folder: Path,
    identity: Mapping[str, object],
    num_classes: int,
    contents: Mapping[str, SplitContents],
) -> None:
    needed = sum(
        len(content.labels) * math.prod(content.shape) * np.dtype(content.dtype).itemsize
        for content in contents.values()
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder.parent).free) < needed:
        raise FormatError(
            f"packing {dict(identity)} needs {needed >> 20} MiB under {folder.parent}, which has "
            f"{free >> 20} MiB left; free some, choose another cache or limit the data set"
        )
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}-{time.time_ns()}")
    part.mkdir()
    try:
        splits = {name: _write(part, name, content) for name, content in contents.items()}
        manifest = {
            "format": FORMAT,
            "identity": dict(identity),
            "contents": {"num_classes": num_classes, "splits": splits},
        }
        with (part / _MANIFEST).open("w") as file:
            file.write(json.dumps(manifest, indent=1))
            _sync(file)
        try:
            part.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster, and its files are as good
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(folder: Path, name: str, content: SplitContents) -> dict[str, Any]:
    """Write the arrays of a split and return their part of the manifest.

    Written, not mapped: a disk that runs full is an error then, and not a signal.
    """
    shape = (len(content.labels), *content.shape)
    dtype = np.dtype(content.dtype)
    sha = hashlib.sha256()
    with (folder / f"{name}.npy").open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _, sample in zip(content.labels, content.samples, strict=True):
            assert sample.shape == content.shape
            row = np.ascontiguousarray(sample, dtype).data
            file.write(row)
            sha.update(row)
        _sync(file)
    np.save(folder / f"{name}-labels.npy", content.labels)
    return {
        "shape": list(shape),
        "dtype": dtype.name,
        "samples_sha256": sha.hexdigest(),
        "labels_sha256": _sha256(content.labels),
    }


def _open(folder: Path) -> Splits:
    """Map the files of a set and check them against its manifest."""
    try:
        manifest = read_json(folder / _MANIFEST, expected_format=FORMAT)
        contents = manifest["contents"]
        splits = {name: _map(folder, name, said) for name, said in contents["splits"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"the packed data set {folder} is damaged: {error}") from error
    # of what the set holds, not of where it came from
    digest = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
    return Splits(**splits, num_classes=contents["num_classes"], digest=digest)


def _map(folder: Path, name: str, said: Mapping[str, Any]) -> PackedSplit:
    path = folder / f"{name}.npy"
    labels = np.load(folder / f"{name}-labels.npy", allow_pickle=False)
    samples = np.load(path, mmap_mode="r", allow_pickle=False)
    if list(samples.shape) != said["shape"] or samples.dtype.name != said["dtype"]:
        raise FormatError(
            f"{path} holds {samples.dtype} {list(samples.shape)}, the manifest says "
            f"{said['dtype']} {said['shape']}"
        )
    found = _sha256(labels), _sha256(samples)
    if found != (said["labels_sha256"], said["samples_sha256"]):
        raise FormatError(f"{path} or its labels have another hash than the manifest says")
    return PackedSplit(path, labels)


def _sha256(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
