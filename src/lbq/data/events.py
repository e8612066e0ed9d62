"""Readers of four formats of event recordings, and event counts as frames.

A reader returns events on the sensor in the order of time, or raises
:class:`lbq.errors.CorruptSample`. Existing readers mask bad addresses instead of rejecting them,
and have a GPL licence (tonic) or a CUDA wheel (spikingjelly). Frames are sliced as in SpikingJelly,
like those of the published results; they hold integer counts and are not normalised.
"""

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lbq.errors import CorruptSample

MAX_BYTES = 1 << 30
"""Larger than any recording of the known sets."""
MAX_RATIO = 200
"""Largest compression ratio: recordings reach 10, deflate 1000 on zeros."""

JITTER_US = 1000
"""Largest overlap of a camera's packets; such events are sorted."""

_POLARITY_PACKET = 1
_PACKET_HEADER = 28


@dataclass(frozen=True)
class Events:
    """Events of one recording, in the order of time."""

    t: NDArray[np.int64]
    """Microseconds."""
    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    p: NDArray[np.uint8]
    """1 for brighter, 0 for darker."""

    def __len__(self) -> int:
        return len(self.t)

    def between(self, start: int, end: int) -> "Events":
        """Return the events with start <= t < end."""
        first, last = np.searchsorted(self.t, [start, end])
        return Events(*(column[first:last] for column in _columns(self)))


def read_nmnist(recording: bytes, *, side: int = 34) -> Events:
    """Read 40-bit events: x, y, then polarity and 23 bits of time (N-MNIST, ``.bin``)."""
    if len(recording) % 5:
        raise CorruptSample(f"{len(recording)} bytes are not a whole number of 5-byte events")
    raw = np.frombuffer(recording, np.uint8).reshape(-1, 5)
    clock = np.zeros((len(raw), 4), np.uint8)
    clock[:, 1:] = raw[:, 2:]
    clock[:, 1] &= 0x7F
    t = clock.view(">u4")[:, 0].astype(np.int64)
    is_overflow = raw[:, 1] == 240  # no event, but 2**13 microseconds more from here on
    if is_overflow.any():
        t += np.cumsum(is_overflow) << 13
        t, raw = t[~is_overflow], raw[~is_overflow]
    x, y = raw[:, 0].astype(np.uint16), raw[:, 1].astype(np.uint16)
    return _checked(Events(t, x, y, raw[:, 2] >> np.uint8(7)), side)


def read_aedat2(recording: bytes) -> Events:
    """Read AEDAT-2.0 of a DVS128: big-endian pairs of address and time (CIFAR10-DVS)."""
    body = _skip_header(recording, b"#!AER-DAT2.0", last=b"#End Of ASCII Header")
    if len(body) % 8:
        raise CorruptSample(f"{len(body)} bytes are not a whole number of 8-byte events")
    raw = np.frombuffer(body, ">u4").reshape(-1, 2)
    is_mark = (raw[:, 0] & 0x8000) > 0  # set from outside: no pixel
    if is_mark.any():
        raw = raw[~is_mark]
    address = raw[:, 0]
    if (address > 0x7FFF).any():
        raise CorruptSample(f"address {int(address.max()):#x} is not on a sensor of 128 x 128")
    t = raw[:, 1].astype(np.int64)
    if (t[1:] < t[:-1]).any():
        t[1:] += np.cumsum(np.diff(t) < -(2**31)) << 32  # the clock has 32 bits
    x, y = ((address >> 1) & 0x7F).astype(np.uint16), (address >> 8).astype(np.uint16)
    return _checked(Events(t, x, y, (address & 1).astype(np.uint8)), 128)


def read_aedat3(recording: bytes) -> Events:
    """Read AEDAT-3.1: packets of little-endian events (DVS128 Gesture)."""
    body = _skip_header(recording, b"#!AER-DAT3.", last=b"#!END-HEADER")
    packets, overflows = [np.zeros((0, 2), np.uint32)], [0]
    while body:
        if len(body) < _PACKET_HEADER:
            raise CorruptSample(f"{len(body)} bytes are left, less than a packet's header")
        kind = int.from_bytes(body[:2], "little")
        size, _, overflow, capacity, number, _ = np.frombuffer(body[4:28], "<u4").tolist()
        packet, body = body[28 : 28 + size * capacity], body[28 + size * capacity :]
        if len(packet) < size * capacity or number > capacity:
            raise CorruptSample(
                f"a packet claims {number} of {capacity} events of {size} bytes, "
                f"{len(packet)} bytes follow"
            )
        if kind != _POLARITY_PACKET:
            continue
        if size != 8:
            raise CorruptSample(f"polarity events have 8 bytes, not {size}")
        packets.append(np.frombuffer(packet[: 8 * number], "<u4").reshape(-1, 2))
        overflows.append(overflow)
    raw = np.concatenate(packets)
    t = np.repeat(np.array(overflows) << 31, [len(packet) for packet in packets])
    t += raw[:, 1]
    is_valid = (raw[:, 0] & 1) == 1
    if not is_valid.all():
        raw, t = raw[is_valid], t[is_valid]
    x, y = (raw[:, 0] >> 17).astype(np.uint16), ((raw[:, 0] >> 2) & 0x7FFF).astype(np.uint16)
    return _checked(Events(t, x, y, ((raw[:, 0] >> 1) & 1).astype(np.uint8)), 128)


def read_npz(recording: bytes) -> Events:
    """Read arrays t, x, y, p (the event files that SpikingJelly makes of DVS128 recordings)."""
    try:
        with zipfile.ZipFile(io.BytesIO(recording)) as file:
            for member in file.infolist():
                check_ratio(member)
            if sum(member.file_size for member in file.infolist()) > MAX_BYTES:
                raise CorruptSample(f"the arrays have more than {MAX_BYTES} bytes")
        with np.load(io.BytesIO(recording), allow_pickle=False) as arrays:
            t, x, y, p = (arrays[name] for name in "txyp")
    except CorruptSample:
        raise
    except Exception as error:  # zip and npy headers fail in many ways
        raise CorruptSample(f"not a file of the arrays t, x, y and p: {error}") from error
    if len({array.shape for array in (t, x, y, p)}) != 1 or t.ndim != 1:
        raise CorruptSample(f"t, x, y, p have shapes {t.shape}, {x.shape}, {y.shape}, {p.shape}")
    for array in (t, x, y, p):
        if array.dtype.kind not in "biu":
            raise CorruptSample(f"events are whole numbers, not {array.dtype}")
    for name, array, bound in (("x", x, 128), ("y", y, 128), ("p", p, 2), ("t", t, 2**62)):
        if len(array) and not (int(array.min()) >= 0 and int(array.max()) < bound):
            raise CorruptSample(f"{name} must lie in 0..{bound - 1}")
    events = Events(
        t.astype(np.int64), x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8)
    )
    return _checked(events, 128)


Reader = Callable[[bytes], Events]

READERS: dict[str, Reader] = {".bin": read_nmnist, ".npz": read_npz}
"""By suffix; the version of ``.aedat`` is in its header."""


def read_events(recording: bytes, name: str) -> Events:
    """Read a recording by the end of its name.

    Raises:
        CorruptSample: if it is damaged or empty, with its name.
    """
    suffix = "." + name.rpartition(".")[2]
    reader = READERS.get(suffix)
    if reader is None:
        reader = read_aedat3 if recording.startswith(b"#!AER-DAT3") else read_aedat2
    try:
        events = reader(recording)
    except CorruptSample as error:
        raise CorruptSample(f"{name}: {error}") from error
    if len(events) == 0:
        raise CorruptSample(f"{name}: no events")
    return events


def _skip_header(recording: bytes, magic: bytes, *, last: bytes) -> memoryview:
    """Return the bytes after the lines that start with a hash."""
    if not recording.startswith(magic):
        raise CorruptSample(f"starts with {recording[:16]!r}, not with {magic!r}")
    start = 0
    while recording[start : start + 1] == b"#":
        end = recording.find(b"\n", start)
        if end < 0:
            raise CorruptSample("the header has no end")
        is_last = recording.startswith(last, start)
        start = end + 1
        if is_last:
            break
    return memoryview(recording)[start:]


def _checked(events: Events, side: int) -> Events:
    """Raise CorruptSample for events off the sensor or far out of order; sort small disorder."""
    if len(events) == 0:
        return events
    x, y = int(events.x.max()), int(events.y.max())
    if x >= side or y >= side:
        raise CorruptSample(f"an event at {x}, {y} is not on a sensor of {side} x {side}")
    if not (events.t[1:] < events.t[:-1]).any():
        return events
    back = int(np.diff(events.t).min())
    if back < -JITTER_US:
        raise CorruptSample(f"time runs back by {-back} microseconds")
    order = np.argsort(events.t, kind="stable")
    return Events(*(column[order] for column in _columns(events)))


def _columns(events: Events) -> tuple[NDArray[Any], ...]:
    return events.t, events.x, events.y, events.p


def check_ratio(member: zipfile.ZipInfo) -> None:
    """Raise if a member claims to unpack to far more bytes than it has.

    Raises:
        CorruptSample: if it does.
    """
    if member.file_size > MAX_RATIO * max(member.compress_size, 1):
        raise CorruptSample(
            f"{member.filename} claims {member.file_size} bytes in {member.compress_size}: "
            "not a recording"
        )


Slicing = Literal["number", "time"]


def slice_bounds(events: Events, timesteps: int, slicing: Slicing) -> NDArray[np.int64]:
    """Return where T slices begin and the last one ends: ``[T + 1]`` positions in the events.

    Slices hold equal numbers of events, or last equally long; the last one gets the remainder.
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
        events: events of one recording, at least one.
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
