"""Sets of event recordings as frames: listed, counted on first use, packed."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lbq.data.archive import Archive, open_archive
from lbq.data.events import read_events
from lbq.data.frames import Slicing, count_frames
from lbq.data.layouts import LAYOUTS, SUFFIXES, Layout, Recording
from lbq.data.packed import SplitContents, open_packed
from lbq.data.splits import Splits, evenly_spaced
from lbq.errors import CorruptSample, FormatError


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
        kind: a name of :data:`lbq.data.layouts.LAYOUTS`.
        timesteps: number of frames (T).
        slicing: frames of equal numbers of events, or equally long.
        size: pixels along a side of a frame; the sensor's if None.
        limits: how many samples of each split to keep, spread evenly; all if None.
        cache: where packed sets lie.
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
