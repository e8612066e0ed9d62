"""From events to frames: how often each pixel fired, in T slices of a recording.

A frame holds whole numbers and is not normalised. The slices are those of SpikingJelly, which the
published results use.
"""

from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lbq.data.events import Events
from lbq.errors import CorruptSample

Slicing = Literal["number", "time"]


def slice_bounds(events: Events, timesteps: int, slicing: Slicing) -> NDArray[np.int64]:
    """Return where T slices begin and the last one ends: ``[T + 1]`` positions in the events.

    Slices hold equal numbers of events, or last equally long; what does not divide evenly goes to
    the last one.
    """
    steps = np.arange(timesteps)
    if slicing == "number":
        starts = steps * (len(events) // timesteps)
    else:
        duration = int(events.t[-1] - events.t[0]) // timesteps
        starts = np.searchsorted(events.t, events.t[0] + steps * duration)
    return np.append(starts, len(events))


def count_frames(
    events: Events, timesteps: int, slicing: Slicing, *, sensor: int, size: int | None = None
) -> NDArray[np.uint16]:
    """Count the events of every pixel, polarity and slice: ``[T, 2, size, size]``.

    Args:
        events: of one recording, at least one.
        timesteps: number of frames (T).
        slicing: equal numbers of events, or equal times.
        sensor: pixels along a side of the sensor.
        size: pixels along a side of a frame. A smaller frame adds up neighbouring pixels, so that
            counts stay whole (published resizing interpolates instead).
    """
    size = sensor if size is None else size
    frames = np.zeros((timesteps, 2, size, size), np.uint16)
    for frame, (first, last) in zip(
        frames, pairwise(slice_bounds(events, timesteps, slicing).tolist()), strict=True
    ):
        place = events.p[first:last].astype(np.int64)
        place = place * size + events.y[first:last].astype(np.int64) * size // sensor
        place = place * size + events.x[first:last].astype(np.int64) * size // sensor
        counts = np.bincount(place, minlength=frame.size)
        if counts.max() > np.iinfo(np.uint16).max:
            raise CorruptSample(f"a pixel fired {counts.max()} times in one of {timesteps} frames")
        frame[...] = counts.reshape(frame.shape)
    return frames
