"""Published sets of event recordings: files, layouts, and packed frames.

- "nmnist": ``Train/<digit>/*.bin`` and ``Test/<digit>/*.bin``.
- "cifar10-dvs": ``<class>/cifar10_<class>_<number>.aedat``, split by the published index
  ``cifar10_dvs_test.json``, since the set comes without a split.
- "dvs-gesture": ``*.aedat`` with ``*_labels.csv``, and the two lists of trials.
- "dvs128-objects": ``session<day>_*/<object>.aedat``, cut into windows of 300 ms; one day for
  training, the other for testing, five objects.

The second and third may also be the ``.npz`` files that SpikingJelly makes of them, in ``<class>/``
and in ``train/<class>/`` and ``test/<class>/``. Archives are never extracted, so no name in one
reaches outside it, and the size of a member is checked before it is read.
"""

import csv
import hashlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from lbq.config_io import read_json
from lbq.data.events import MAX_BYTES, Events, Slicing, check_ratio, count_frames, read_events
from lbq.data.packed import SplitContents, open_packed
from lbq.data.splits import Splits, evenly_spaced
from lbq.errors import CorruptSample, FormatError

_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""Raised for files that are damaged, encrypted or compressed in an unknown way."""


@dataclass(frozen=True)
class Archive:
    """A folder or a zip file with the files of a data set."""

    path: Path
    sizes: dict[str, int]
    """Bytes of every file, by its path inside, in the order of these paths."""

    def read(self, name: str) -> bytes:
        """Read one file whole.

        Raises:
            CorruptSample: if it cannot be read, is too large, or its checksum is wrong.
        """
        if self.sizes[name] > MAX_BYTES:
            raise CorruptSample(f"{name} has {self.sizes[name]} bytes, more than {MAX_BYTES}")
        try:
            if self.path.is_dir():
                return (self.path / name).read_bytes()
            check_ratio(self._zip.getinfo(name))
            return self._zip.read(name)
        except _UNREADABLE as error:
            raise CorruptSample(f"{name} in {self.path} cannot be read: {error}") from error

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path)

    def named(self, *suffixes: str) -> list[str]:
        """Return the files whose names end in one of the suffixes."""
        return [name for name in self.sizes if name.endswith(suffixes)]

    def digest(self, *suffixes: str) -> str:
        """Hash names and bytes of the files with these suffixes; a zip file as a whole.

        Names, sizes and times are not enough: a file can be rewritten and keep all of them.
        """
        if not self.path.is_dir():
            return _sha256(self.path)
        total = hashlib.sha256()
        for name in self.named(*suffixes):
            total.update(f"{_sha256(self.path / name)} {name}\0".encode("utf-8", "surrogateescape"))
        return total.hexdigest()


def open_archive(source: str) -> Archive:
    """List a folder or a zip file."""
    path = Path(source)
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file())
        sizes = {file.relative_to(path).as_posix(): file.stat().st_size for file in files}
    elif path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            members = [member for member in file.infolist() if not member.is_dir()]
        sizes = {member.filename: member.file_size for member in members}
    else:
        raise FormatError(f"{source} is neither a folder nor a zip file")
    return Archive(path, dict(sorted(sizes.items())))


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorruptSample(f"{path} cannot be read: {error.strerror}") from error


CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
OBJECTS = ("Caixa", "Caneca", "Estilete", "Lapiseira", "Tesoura")
"""Box, mug, knife, pencil, scissors: those that were recorded on both days."""

SUFFIXES = (".aedat", ".bin", ".npz", ".csv", ".txt")
"""Suffixes of the files that layouts read: recordings, tables of labels, lists of trials."""

_GESTURES = 11
_WINDOW_US = 300_000


@dataclass(frozen=True)
class Recording:
    """One sample: a file, or its events between two times in microseconds."""

    file: str
    label: int
    times: tuple[int, int] | None = None


Found = tuple[list[Recording], list[Recording]]
"""Recordings to train and to test on."""


@dataclass(frozen=True)
class Layout:
    """Layout of one kind of set."""

    num_classes: int
    sensor: int
    """Pixels along a side of the sensor."""
    find: Callable[[Archive], Found]
    """Lists the samples."""
    upright: Callable[[Events, str], Events] = lambda events, name: events
    """Turns the events of a named file so that objects stand upright."""


@cache
def cifar10_dvs_test_numbers() -> frozenset[int]:
    """Return the numbers of the test recordings, the same for every class."""
    index = read_json(Path(__file__).with_name("cifar10_dvs_test.json"))
    return frozenset(index["test"])


def _find_cifar10_dvs(archive: Archive) -> Found:
    train, test = list[Recording](), list[Recording]()
    for name in archive.named(".aedat", ".npz"):
        match = re.fullmatch(r"cifar10_([a-z]+)_(\d+)", PurePosixPath(name).stem)
        if match is None or match[1] not in CIFAR10_CLASSES:
            raise FormatError(f"{name} is not named like cifar10_<class>_<number>.aedat")
        is_test = int(match[2]) in cifar10_dvs_test_numbers()
        (test if is_test else train).append(Recording(name, CIFAR10_CLASSES.index(match[1])))
    return train, test


def _turn_cifar10_dvs(events: Events, name: str) -> Events:
    """Undo how the camera was mounted; polarities were swapped as well."""
    if name.endswith(".npz"):  # was turned when it was made
        return events
    return Events(events.t, 127 - events.y, 127 - events.x, 1 - events.p)


def _find_gestures(archive: Archive) -> Found:
    if archive.named(".npz"):
        return _by_folder(archive, ".npz", ("train", "test"), _GESTURES)
    found: list[list[Recording]] = []
    for trials in ("trials_to_train.txt", "trials_to_test.txt"):
        (listing,) = archive.named(trials) or [None]
        if listing is None:
            raise FormatError(f"{archive.path} holds no {trials}, which defines the split")
        folder = PurePosixPath(listing).parent
        files = [line.strip() for line in archive.read(listing).decode().splitlines()]
        found.append(
            [
                recording
                for file in files
                if file
                for recording in _gestures_of(archive, str(folder / file))
            ]
        )
    return found[0], found[1]


def _gestures_of(archive: Archive, file: str) -> list[Recording]:
    """Read which gesture a recording shows when; classes count from 1 there, from 0 here."""
    table = file.removesuffix(".aedat") + "_labels.csv"
    try:
        rows = list(csv.reader(archive.read(table).decode().splitlines()))[1:]
        labels = [(int(row[0]) - 1, int(row[1]), int(row[2])) for row in rows]
    except (KeyError, ValueError, IndexError) as error:
        raise CorruptSample(f"{table}: no table of class, start and end: {error}") from error
    if not all(0 <= label < _GESTURES and start < end for label, start, end in labels):
        raise CorruptSample(f"{table}: classes lie in 1..{_GESTURES} and start before they end")
    return [Recording(file, label, (start, end)) for label, start, end in labels]


def _find_objects(archive: Archive) -> Found:
    by_day: dict[str, list[Recording]] = {"session1": [], "session0": []}
    for name in archive.named(".aedat"):
        session = PurePosixPath(name).parent.name.partition("_")[0]
        thing = PurePosixPath(name).stem.partition("_")[0]
        if session in by_day and thing in OBJECTS:
            events = read_events(archive.read(name), name)
            first, last = int(events.t[0]), int(events.t[-1])
            by_day[session] += [
                Recording(name, OBJECTS.index(thing), (start, start + _WINDOW_US))
                for start in range(first, last - _WINDOW_US + 1, _WINDOW_US)
            ]
    return by_day["session1"], by_day["session0"]


def _by_folder(archive: Archive, suffix: str, splits: tuple[str, str], num_classes: int) -> Found:
    """List files in ``<split>/<class>/``, classes being numbers from 0 on."""
    found: dict[str, list[Recording]] = {split: [] for split in splits}
    for name in archive.named(suffix):
        split, label = ("", "", *PurePosixPath(name).parts)[-3:-1]
        if split in found and label.isdecimal() and int(label) < num_classes:
            found[split].append(Recording(name, int(label)))
    return found[splits[0]], found[splits[1]]


LAYOUTS: dict[str, Layout] = {
    "nmnist": Layout(10, 34, lambda archive: _by_folder(archive, ".bin", ("Train", "Test"), 10)),
    "cifar10-dvs": Layout(10, 128, _find_cifar10_dvs, _turn_cifar10_dvs),
    "dvs-gesture": Layout(_GESTURES, 128, _find_gestures),
    "dvs128-objects": Layout(len(OBJECTS), 128, _find_objects),
}


def open_recordings(
    source: str,
    kind: str,
    *,
    timesteps: int,
    slicing: Slicing,
    size: int | None,
    limits: tuple[int | None, int | None],
    cache: Path,
) -> Splits:
    """Open a set of recordings.

    Packed frames are found by a hash of the recordings' bytes, so every call reads the recordings
    once. That takes about as long as checking the packed frames against their own hashes, which
    are usually larger than the recordings.

    Args:
        source: folder or zip file.
        kind: a name of :data:`lbq.data.recordings.LAYOUTS`.
        timesteps: number of frames (T).
        slicing: frames of equal numbers of events, or equally long.
        size: pixels along a side of a frame; the sensor's if None.
        limits: how many samples of each split to keep, spread evenly; all if None.
        cache: folder of packed sets.
    """
    archive, layout = open_archive(source), LAYOUTS[kind]
    size = layout.sensor if size is None else size

    def contents() -> dict[str, SplitContents]:
        found = zip(("train", "test"), layout.find(archive), limits, strict=True)
        packed: dict[str, SplitContents] = {}
        for split, recordings, limit in found:
            if not recordings:
                raise FormatError(f"{source} has no {split} recordings in the layout of {kind}")
            chosen = [recordings[i] for i in evenly_spaced(len(recordings), limit).tolist()]
            packed[split] = SplitContents(
                labels=np.array([recording.label for recording in chosen], np.int64),
                shape=(timesteps, 2, size, size),
                dtype=np.uint16,
                samples=_frames(archive, layout, chosen, timesteps, slicing, size),
            )
        return packed

    identity = {
        "source": source,
        "files": archive.digest(*SUFFIXES),
        "kind": kind,
        "frames": [timesteps, slicing, size],
        "limits": list(limits),
    }
    return open_packed(cache, identity=identity, num_classes=layout.num_classes, contents=contents)


def _frames(
    archive: Archive,
    layout: Layout,
    recordings: list[Recording],
    timesteps: int,
    slicing: Slicing,
    size: int,
) -> Iterator[NDArray[np.uint16]]:
    """Count one recording after the other; a file with many of them is read once."""
    file, whole = "", None
    for recording in recordings:
        if recording.file != file or whole is None:
            file = recording.file
            whole = layout.upright(read_events(archive.read(file), file), file)
        events = whole
        if recording.times is not None:
            events = whole.between(*recording.times)
        if len(events) == 0:
            raise CorruptSample(f"{file}: no events between {recording.times} microseconds")
        yield count_frames(events, timesteps, slicing, sensor=layout.sensor, size=size)
