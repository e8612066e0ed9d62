"""Images in folders of classes: ``<split>/<class>/<file>``.

The ``datasets`` library reads this layout too, but lists all files anew at every opening. One walk
over the folders gives the same images, order and classes in seconds.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SPLITS = {"train": "train", "test": "test", "validation": "validation", "val": "validation"}
"""Names of folders, and of the splits that they hold."""
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """The files of one split, in the order of their paths.

    Their names are one block of bytes. A million strings would be copied page by page into every
    loader process, because reading a string writes its reference count.
    """

    split: str
    folders: tuple[str, ...]
    """One per class."""
    labels: NDArray[np.int64]
    names: bytes
    starts: NDArray[np.int64]
    """Where the name of a file starts in ``names``; a zero byte ends it."""
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    """Times of the last modification, in nanoseconds."""

    def fetch(self, i: int) -> tuple[str, bytes]:
        """Return the name of an image and its bytes."""
        start = int(self.starts[i])
        name = os.fsdecode(self.names[start : self.names.index(0, start)])
        path = f"{self.folders[self.labels[i]]}/{name}"
        with open(path, "rb", buffering=0) as file:
            return f"{self.split}[{i}] ({path})", file.read()

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of bytes of every image."""
        return self.sizes

    def select(self, index: NDArray[np.int64]) -> "ImageFiles":
        """Keep some of the files."""
        kept = {name: getattr(self, name)[index] for name in ("labels", "starts", "sizes", "times")}
        return replace(self, **kept)

    def digest(self) -> str:
        """Hash names, classes, sizes and times: they change when a file does."""
        sha = hashlib.sha256(self.names)
        for each in (self.labels, self.sizes, self.times):
            sha.update(each.tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class _Class:
    """The files of one class of one split, sorted by name."""

    names: bytes
    ends: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]


def list_image_folder(folder: Path) -> tuple[dict[str, ImageFiles], list[str]] | None:
    """List the splits and classes; None if the folder holds anything but classes of images.

    Names that start with a point are ignored.
    """
    if not folder.is_dir():
        return None
    listed: dict[str, tuple[Path, dict[str, _Class]]] = {}
    for place in _entries(folder):
        split = _SPLITS.get(place.name)
        classes = None if split is None or not place.is_dir() else _list_classes(place.path)
        if split is None or classes is None or split in listed:
            return None
        if classes:
            listed[split] = Path(place.path).absolute(), classes
    names = sorted({name for _, classes in listed.values() for name in classes})
    splits = {split: _join(split, place, names, found) for split, (place, found) in listed.items()}
    return (splits, names) if splits else None


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if entry.name[0] != "."]


def _list_classes(folder: str) -> dict[str, _Class] | None:
    """List the files of all classes, in the order of their paths."""
    found: dict[str, _Class] = {}
    for place in sorted(_entries(folder), key=lambda entry: f"{entry.name}/"):
        if not place.is_dir() or place.name.startswith("__"):
            return None
        files = sorted(_entries(place.path), key=_name)
        if any(not file.name.lower().endswith(_SUFFIXES) or file.is_dir() for file in files):
            return None
        if files:
            found[place.name] = _list_class(files)
    return found


def _list_class(files: list[os.DirEntry[str]]) -> _Class:
    stats = [file.stat() for file in files]
    names = [os.fsencode(file.name) + b"\0" for file in files]
    return _Class(
        names=b"".join(names),
        ends=np.cumsum([len(name) for name in names]),
        sizes=np.array([stat.st_size for stat in stats], np.int64),
        times=np.array([stat.st_mtime_ns for stat in stats], np.int64),
    )


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _join(split: str, folder: Path, names: list[str], found: dict[str, _Class]) -> ImageFiles:
    number = {name: i for i, name in enumerate(names)}
    classes = list(found.values())
    labels = np.repeat([number[name] for name in found], [len(each.ends) for each in classes])
    ends = np.cumsum(np.concatenate([np.diff(each.ends, prepend=0) for each in classes]))
    return ImageFiles(
        split=split,
        folders=tuple(str(folder / name) for name in names),
        labels=labels.astype(np.int64),
        names=b"".join(each.names for each in classes),
        starts=np.concatenate([[0], ends[:-1]]),
        sizes=np.concatenate([each.sizes for each in classes]),
        times=np.concatenate([each.times for each in classes]),
    )
