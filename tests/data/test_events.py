"""Readers against writers of their formats, real files and damage; counts as frames."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from lbq.data.events import JITTER_US, Events, count_frames, read_events, slice_bounds
from lbq.data.recordings import open_archive
from lbq.errors import CorruptSample


def some_events(count=500, side=128, seed=0):
    generator = np.random.default_rng(seed)
    return Events(
        np.sort(generator.integers(0, 300_000, count)),
        generator.integers(0, side, count).astype(np.uint16),
        generator.integers(0, side, count).astype(np.uint16),
        generator.integers(0, 2, count).astype(np.uint8),
    )


def write_nmnist(events):
    rows = [
        (x, y, (p << 7) | (t >> 16), (t >> 8) & 255, t & 255)
        for t, x, y, p in zip(*columns(events), strict=True)
    ]
    return np.array(rows, np.uint8).tobytes()


def write_aedat2(events, header=b"#!AER-DAT2.0\r\n# a remark\r\n#End Of ASCII Header\r\n"):
    t, x, y, p = columns(events)
    return header + np.stack([(y << 8) | (x << 1) | p, t], axis=1).astype(">u4").tobytes()


def write_aedat3(events, *, overflow=0):
    per_packet = len(events) // 5
    t, x, y, p = columns(events)
    rows = np.stack([(x << 17) | (y << 2) | (p << 1) | 1, t], axis=1).astype("<u4")
    recording = b"#!AER-DAT3.1\r\n#Format: RAW\r\n#!END-HEADER\r\n"
    other = np.array([2, 1], "<u2").tobytes() + np.array([4, 0, 0, 3, 3, 3], "<u4").tobytes()
    recording += other + bytes(12)  # a packet of another kind
    for start in range(0, len(rows), per_packet):
        part = rows[start : start + per_packet]
        head = np.array([8, 4, overflow, len(part), len(part), len(part)], "<u4").tobytes()
        recording += np.array([1, 1], "<u2").tobytes() + head + part.tobytes()
    return recording


def write_npz(events, **replaced):
    arrays = dict(zip("txyp", columns(events), strict=True)) | replaced
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def columns(events):
    return [column.astype(np.int64) for column in (events.t, events.x, events.y, events.p)]


FORMATS = {
    "a.bin": (write_nmnist, 34),
    "a.aedat": (write_aedat2, 128),
    "b.aedat": (write_aedat3, 128),
    "a.npz": (write_npz, 128),
}


def same(first, second):
    pairs = zip(columns(first), columns(second), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_written_is_read_back(name):
    write, side = FORMATS[name]
    events = some_events(side=side)
    read = read_events(write(events), name)
    assert same(read, events)
    dtypes = [column.dtype for column in (read.t, read.x, read.y, read.p)]
    assert dtypes == [np.int64, np.uint16, np.uint16, np.uint8]


def test_real_nmnist_recordings_lie_on_their_sensor(real_data):
    files = open_archive(str(real_data / "nmnist-1100/nmnist_small.zip"))
    for name in files.named(".bin")[:50]:
        events = read_events(files.read(name), name)
        assert 1000 < len(events) < 20_000
        assert 250_000 < events.t[-1] - events.t[0] < 350_000  # three saccades in 300 ms


def test_a_real_aedat_recording_has_the_known_number_of_events(real_data):
    files = open_archive(str(real_data / "dvs128-objects/dvs128_objects_aedat.zip"))
    name = "session0_2018-10-06/Caixa.aedat"
    events = read_events(files.read(name), name)
    assert len(events) == 201_523
    assert events.t[-1] - events.t[0] == 18_491_949


def test_nmnist_marks_of_overflow_add_time_and_are_no_events():
    one = bytes([1, 2, 128, 5000 >> 8, 5000 & 255])
    events = read_events(one + bytes([0, 240, 0, 0, 0]) + one, "a.bin")
    assert events.t.tolist() == [5000, 5000 + 8192]


def test_aedat2_goes_on_across_an_overflow_of_its_clock():
    events = some_events()
    late = Events((events.t + 2**32 - 100_000) % 2**32, events.x, events.y, events.p)
    read = read_events(write_aedat2(late), "a.aedat")
    assert np.array_equal(np.diff(read.t), np.diff(events.t))


def test_aedat2_skips_marks_from_outside():
    mark = np.array([0x8000, 5], ">u4").tobytes()
    events = some_events()
    assert same(read_events(write_aedat2(events) + mark, "a.aedat"), events)


def test_aedat3_adds_the_overflows_of_its_clock():
    events = some_events()
    read = read_events(write_aedat3(events, overflow=3), "a.aedat")
    assert np.array_equal(read.t, events.t + 3 * 2**31)


def test_small_disorder_is_put_in_order_and_large_disorder_refused():
    events = some_events()
    t = events.t.copy()
    t[100] = t[99] - JITTER_US
    read = read_events(write_aedat2(Events(t, events.x, events.y, events.p)), "a.aedat")
    assert (np.diff(read.t) >= 0).all()
    assert sorted(read.t) == sorted(t)
    t[300] = t[299] - 50 * JITTER_US
    with pytest.raises(CorruptSample, match=r"cup\.aedat: time runs back"):
        read_events(write_aedat2(Events(t, events.x, events.y, events.p)), "cup.aedat")


def test_a_part_of_a_recording_is_cut_by_time():
    events = some_events()
    part = events.between(100_000, 200_000)
    mask = (events.t >= 100_000) & (events.t < 200_000)
    assert np.array_equal(part.t, events.t[mask])
    assert np.array_equal(part.x, events.x[mask])


GOOD = {name: write(some_events(side=side)) for name, (write, side) in FORMATS.items()}
OFF_SENSOR = some_events()
OFF_SENSOR.x[7] = 200
DAMAGED = {
    "an empty file": ("a.bin", b""),
    "a torn event": ("a.bin", GOOD["a.bin"][:-2]),
    "an event off the sensor": ("a.bin", GOOD["a.bin"] + bytes([40, 1, 255, 255, 255])),
    "another format": ("a.aedat", b"PK\x03\x04" + bytes(100)),
    "no end of the header": ("a.aedat", b"#!AER-DAT2.0 and nothing else"),
    "no events": ("a.aedat", b"#!AER-DAT2.0\r\n"),
    "half an event": ("a.aedat", GOOD["a.aedat"][:-4]),
    "a high address": ("a.aedat", GOOD["a.aedat"] + np.array([0x70000, 9], ">u4").tobytes()),
    "half a packet": ("b.aedat", GOOD["b.aedat"][:-10]),
    "half a packet header": ("b.aedat", GOOD["b.aedat"] + bytes(9)),
    "a packet of terabytes": (
        "b.aedat",
        GOOD["b.aedat"]
        + bytes([1, 0, 1, 0])
        + np.array([8, 4, 0, 2**31, 2**31, 1], "<u4").tobytes(),
    ),
    "events of odd size": (
        "b.aedat",
        GOOD["b.aedat"]
        + bytes([1, 0, 1, 0])
        + np.array([9, 4, 0, 1, 1, 1], "<u4").tobytes()
        + bytes(9),
    ),
    "a pixel off the sensor": ("b.aedat", write_aedat3(OFF_SENSOR)),
    "half an npz": ("a.npz", GOOD["a.npz"][: len(GOOD["a.npz"]) // 2]),
    "an npz off the sensor": ("a.npz", write_npz(OFF_SENSOR)),
    "fractional events": ("a.npz", write_npz(some_events(), x=np.full(500, 0.5))),
    "negative places": ("a.npz", write_npz(some_events(), y=np.full(500, -1))),
    "pickled objects": ("a.npz", write_npz(some_events(), t=np.array([{}] * 500))),
    "arrays of different lengths": ("a.npz", write_npz(some_events(), p=np.zeros(9, int))),
    "a missing array": ("a.npz", GOOD["a.npz"].replace(b"t.npy", b"u.npy")),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_recording_is_a_corrupt_sample_with_its_name(damage):
    suffix, recording = DAMAGED[damage]
    with pytest.raises(CorruptSample, match="day1/" + suffix):
        read_events(recording, "day1/" + suffix)


def test_an_npz_bomb_is_refused_before_it_is_unpacked():
    bomb = write_npz(some_events(), t=np.zeros(4_000_000, np.int64))
    tracemalloc.start()
    with pytest.raises(CorruptSample, match="claims"):
        read_events(bomb, "a.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert zipfile.ZipFile(io.BytesIO(bomb)).getinfo("t.npy").file_size > 30_000_000


@pytest.mark.parametrize("name", FORMATS)
def test_random_damage_gives_valid_frames_or_a_corrupt_sample(name):  # I2
    side = FORMATS[name][1]
    generator = np.random.default_rng(2)
    outcomes = {"frames": 0, "corrupt": 0}
    for _ in range(1000):
        damaged = bytearray(GOOD[name])
        for place in generator.integers(0, len(damaged), generator.integers(1, 4)):
            damaged[place] ^= 1 << generator.integers(8)
        if generator.random() < 0.3:
            del damaged[generator.integers(len(damaged)) :]
        try:
            events = read_events(bytes(damaged), name)
            frames = count_frames(events, 4, "time", sensor=side)
        except CorruptSample:
            outcomes["corrupt"] += 1
        else:
            assert frames.sum() == len(events)
            outcomes["frames"] += 1
    assert outcomes["corrupt"] > 200
    assert sum(outcomes.values()) == 1000


@pytest.mark.parametrize("name", FORMATS)
def test_reading_takes_little_more_memory_than_the_events_do(name):
    write, side = FORMATS[name]
    recording = write(some_events(200_000, side=side))
    size = 200_000 * {"a.bin": 5, "a.npz": 32}.get(name, 8)
    tracemalloc.start()
    events = read_events(recording, name)
    count_frames(events, 10, "number", sensor=side)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * size


def one_by_one(events, bounds, side):
    frames = np.zeros((len(bounds) - 1, 2, side, side), int)
    for step in range(len(bounds) - 1):
        for i in range(bounds[step], bounds[step + 1]):
            frames[step, events.p[i], events.y[i], events.x[i]] += 1
    return frames


@pytest.mark.parametrize("slicing", ["number", "time"])
def test_frames_count_events_one_by_one(slicing):
    events = some_events(1003, 34)
    frames = count_frames(events, 7, slicing, sensor=34)
    assert np.array_equal(frames, one_by_one(events, slice_bounds(events, 7, slicing), 34))


def test_slices_by_number_are_equal_and_the_last_takes_the_rest():
    events = some_events(1003, 34)
    assert np.diff(slice_bounds(events, 10, "number")).tolist() == [100] * 9 + [103]


def test_slices_by_time_are_equally_long():
    events = some_events(1003, 34)
    bounds = slice_bounds(events, 4, "time")
    duration = (events.t[-1] - events.t[0]) // 4
    for step in range(4):
        t = events.t[bounds[step] : bounds[step + 1]]
        assert t.min() >= events.t[0] + step * duration
        assert step == 3 or t.max() < events.t[0] + (step + 1) * duration


@pytest.mark.parametrize("slicing", ["number", "time"])
def test_fewer_events_than_frames_are_still_counted(slicing):
    frames = count_frames(some_events(3, 34), 8, slicing, sensor=34)
    assert frames.shape == (8, 2, 34, 34)
    assert frames.sum() == 3


def test_smaller_frames_add_up_neighbours():
    events = some_events(5000, side=128)
    whole = count_frames(events, 3, "number", sensor=128)
    small = count_frames(events, 3, "number", sensor=128, size=32)
    assert np.array_equal(small, whole.reshape(3, 2, 32, 4, 32, 4).sum((3, 5)))


def test_a_pixel_that_fires_without_end_is_corrupt():
    count = 70_000
    still = np.zeros(count, np.uint16)
    events = Events(np.arange(count), still, still, still.astype(np.uint8))
    with pytest.raises(CorruptSample, match="70000 times"):
        count_frames(events, 1, "number", sensor=34)
