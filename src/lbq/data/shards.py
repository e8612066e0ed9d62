"""Images in webdataset shards: tar files that hold ``<key>.jpg`` and ``<key>.cls`` side by side.

Shards suit network storage: few large files, read in large pieces. Their members are listed once,
and from then on every image is read at its place in the file, so that any process can read any
sample, and the order of an epoch needs no stream. The format is webdataset's, and tests read and
write it with that library; reading does not need it: with its security switched on it opens no
local files, and a stream of its samples depends on workers and buffers.
"""

import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbq.data.encoded_images import EncodedSet, EncodedSplit, count_classes
from lbq.data.packed import SplitContents, open_packed
from lbq.data.splits import Split, evenly_spaced
from lbq.errors import CorruptSample, FormatError

SUFFIXES = ("jpg", "jpeg", "png", "webp")
MAX_BYTES = 1 << 28
"""Of one image, encoded."""

_TEST_SPLITS = ("test", "validation", "val")
_HEADER = 512
_LABEL = re.compile(rb"\s*(-?[0-9]{1,18})\s*")
_OPEN_FILES = 64


def open_shards(
    source: str,
    *,
    splits: tuple[str, str | None],
    limits: tuple[int | None, int | None],
    cache: Path,
) -> EncodedSet:
    """Open the shards of a folder; they are listed on first use.

    Args:
        source: folder.
        splits: how the paths of both splits' shards start; the second is "test" or "validation"
            if None.
        limits: how many samples of each to keep, spread evenly; all if None.
        cache: where listings are packed.
    """
    folder = Path(source)
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.tar"))
    train = _of_split((splits[0],), paths, source)
    test = _of_split(_TEST_SPLITS if splits[1] is None else (splits[1],), paths, source)
    states = [(folder / path).stat() for path in (*train, *test)]
    identity = {
        "source": source,
        "kind": "shards",
        "train": list(train),
        "test": list(test),
        "states": [[state.st_size, state.st_mtime_ns] for state in states],
    }
    listed = open_packed(
        cache,
        identity=identity,
        num_classes=None,
        contents=lambda: {"train": _list(folder, train), "test": _list(folder, test)},
    )
    whole = _rows(folder, train, listed.train, None), _rows(folder, test, listed.test, None)
    return EncodedSet(
        train=_rows(folder, train, listed.train, limits[0]),
        test=_rows(folder, test, listed.test, limits[1]),
        num_classes=count_classes(*whole, source),
        identity=identity | {"limits": list(limits)},
    )


class _Member(NamedTuple):
    """Where an image lies, and its class."""

    shard: int
    start: int
    length: int
    label: int


@dataclass(frozen=True)
class _Shards:
    """Members of tar files."""

    paths: tuple[Path, ...]
    places: NDArray[np.int64]
    """Shard, start and length of every image, ``[N, 3]``."""

    def fetch(self, i: int) -> tuple[str, bytes]:
        shard, start, length = self.places[i].tolist()
        path = self.paths[shard]
        try:
            head = _pread(str(path), _HEADER, start - _HEADER)
            name = f"{tarfile.TarInfo.frombuf(head, 'utf-8', 'replace').name} in {path.name}"
        except (OSError, tarfile.TarError) as error:
            raise CorruptSample(f"image {i} in {path}: {error}") from error
        if length > MAX_BYTES:
            raise CorruptSample(f"{name} has {length} bytes, more than {MAX_BYTES}")
        encoded = _pread(str(path), length, start)
        if len(encoded) < length:
            raise CorruptSample(f"{name} is cut off after {len(encoded)} of {length} bytes")
        return name, encoded

    def lengths(self) -> NDArray[np.int64]:
        return self.places[:, 2]


class _Handle:
    """An open file that closes with its last reader; workers may share it."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@lru_cache(maxsize=_OPEN_FILES)
def _handle(path: str) -> _Handle:
    return _Handle(path)


def _pread(path: str, length: int, start: int) -> bytes:
    return os.pread(_handle(path).number, length, start)


def _of_split(wanted: tuple[str, ...], paths: list[str], source: str) -> tuple[str, ...]:
    for name in wanted:
        if chosen := tuple(path for path in paths if path.startswith(name)):
            return chosen
    raise FormatError(
        f"{source} has no shards whose paths start with {' or '.join(wanted)}; it has "
        f"{', '.join(paths[:5]) or 'no tar files'}"
    )


def _rows(folder: Path, names: tuple[str, ...], listed: Split, limit: int | None) -> EncodedSplit:
    chosen = evenly_spaced(len(listed.labels), limit)
    places = listed.read(chosen)
    paths = tuple(folder / name for name in names)
    return EncodedSplit(listed.labels[chosen], _Shards(paths, places), places[:, 0])


def _list(folder: Path, names: tuple[str, ...]) -> SplitContents:
    members = [
        member for shard, name in enumerate(names) for member in _members(folder / name, shard)
    ]
    if not members:
        raise FormatError(f"{folder / names[0]} and its like hold no images with a .cls file")
    table = np.array(members, np.int64)  # [N, 4]
    return SplitContents(table[:, 3].copy(), (3,), np.int64, table[:, :3])


def _members(path: Path, shard: int) -> Iterator[_Member]:
    """List the images of one shard; what belongs together follows each other."""
    key, image, label = None, None, None
    try:
        with tarfile.open(path, "r:") as file:
            for member in file:
                if not member.isreg():
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                if (folder, stem) != key:
                    key, image, label = (folder, stem), None, None
                if suffix.lower() in SUFFIXES:
                    image = member.offset_data, member.size
                elif suffix == "cls":
                    content = file.extractfile(member)
                    assert content is not None
                    label = _parse_label(content.read(20), member.name)
                if image is not None and label is not None:
                    yield _Member(shard, *image, label)
                    image = label = None
    except (OSError, tarfile.TarError, ValueError) as error:
        raise FormatError(f"{path} is no whole, uncompressed tar file: {error}") from error


def _parse_label(text: bytes, name: str) -> int:
    found = _LABEL.fullmatch(text)
    if found is None:
        raise ValueError(f"{name} holds {text!r} instead of the number of a class")
    return int(found[1])
