import numpy as np
import pytest

from lbq.data.events import Events, count_frames, slice_bounds
from lbq.errors import CorruptSample


def some_events(count=1003, side=34):
    generator = np.random.default_rng(0)
    return Events(
        np.sort(generator.integers(1000, 300_000, count)),
        generator.integers(0, side, count).astype(np.uint16),
        generator.integers(0, side, count).astype(np.uint16),
        generator.integers(0, 2, count).astype(np.uint8),
    )


def one_by_one(events, bounds, side):
    frames = np.zeros((len(bounds) - 1, 2, side, side), int)
    for step in range(len(bounds) - 1):
        for i in range(bounds[step], bounds[step + 1]):
            frames[step, events.p[i], events.y[i], events.x[i]] += 1
    return frames


@pytest.mark.parametrize("slicing", ["number", "time"])
def test_frames_count_events_one_by_one(slicing):
    events = some_events()
    frames = count_frames(events, 7, slicing, sensor=34)
    assert np.array_equal(frames, one_by_one(events, slice_bounds(events, 7, slicing), 34))


def test_slices_by_number_are_equal_and_the_last_takes_the_rest():
    events = some_events(1003)
    assert np.diff(slice_bounds(events, 10, "number")).tolist() == [100] * 9 + [103]


def test_slices_by_time_are_equally_long():
    events = some_events()
    bounds = slice_bounds(events, 4, "time")
    duration = (events.t[-1] - events.t[0]) // 4
    for step in range(4):
        t = events.t[bounds[step] : bounds[step + 1]]
        assert t.min() >= events.t[0] + step * duration
        assert step == 3 or t.max() < events.t[0] + (step + 1) * duration


@pytest.mark.parametrize("slicing", ["number", "time"])
def test_fewer_events_than_frames_are_still_counted(slicing):
    frames = count_frames(some_events(3), 8, slicing, sensor=34)
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
