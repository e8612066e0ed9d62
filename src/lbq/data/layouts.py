"""How published sets of recordings lie in their folders: which file is which sample and class.

- "nmnist": ``Train/<digit>/*.bin`` and ``Test/<digit>/*.bin``.
- "cifar10-dvs": ``<class>/cifar10_<class>_<number>.aedat``, split by the published index
  ``cifar10_dvs_test.json``, since the set comes without a split.
- "dvs-gesture": ``*.aedat`` with ``*_labels.csv``, and the two lists of trials.
- "dvs128-objects": ``session<day>_*/<object>.aedat``, cut into windows of 300 ms; one day to train
  on, the other to test on, five objects.

The second and third may also be the ``.npz`` files that SpikingJelly makes of them, in ``<class>/``
and in ``train/<class>/`` and ``test/<class>/``.
"""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from lbq.data.archive import Archive
from lbq.data.events import Events, read_events
from lbq.errors import CorruptSample, FormatError

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
"""Of the files that layouts read: recordings, tables of labels, lists of trials."""

_GESTURES = 11
_WINDOW_US = 300_000


@dataclass(frozen=True)
class Recording:
    """One sample: a file, or what happens in it between two times in microseconds."""

    file: str
    label: int
    times: tuple[int, int] | None = None


Found = tuple[list[Recording], list[Recording]]
"""Recordings to train and to test on."""


@dataclass(frozen=True)
class Layout:
    """What a kind of set is."""

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
    index = json.loads(Path(__file__).with_name("cifar10_dvs_test.json").read_text())
    return frozenset(index["test"])


def _find_nmnist(archive: Archive) -> Found:
    return _by_folder(archive, ".bin", ("Train", "Test"), 10)


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
            raise FormatError(f"{archive.path} holds no {trials}, which tells the split")
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
    "nmnist": Layout(10, 34, _find_nmnist),
    "cifar10-dvs": Layout(10, 128, _find_cifar10_dvs, _turn_cifar10_dvs),
    "dvs-gesture": Layout(_GESTURES, 128, _find_gestures),
    "dvs128-objects": Layout(len(OBJECTS), 128, _find_objects),
}
