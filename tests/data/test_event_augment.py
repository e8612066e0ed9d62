import numpy as np
import pytest

from lbq.data.augment import AugmentConfig
from lbq.data.event_augment import augment_clips

CLIPS = np.random.default_rng(0).integers(1, 9, (300, 3, 2, 24, 20), dtype=np.uint16)


def vary(clips=CLIPS, *, start=0, **config):
    return augment_clips(clips, AugmentConfig(**config), seed=0, epoch=0, start=start)


def pointer(count=400, size=41):
    """A dot off the centre: where it ends up tells what happened."""
    clips = np.zeros((count, 2, 2, size, size), np.uint16)
    clips[:, :, :, size // 2, size // 2 + 12] = 1
    return clips


def test_counts_stay_as_they_are_unless_asked():
    varied = vary()
    assert varied.dtype == np.float32
    assert np.array_equal(varied, CLIPS)


def test_half_of_the_clips_are_mirrored():
    mirrored = (vary(flip=True) == CLIPS[..., ::-1]).all((1, 2, 3, 4))
    same = (vary(flip=True) == CLIPS).all((1, 2, 3, 4))
    assert (mirrored ^ same).all()
    assert mirrored.mean() == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("events", ["wide", "nda", "roll"])
def test_all_frames_of_a_clip_get_the_same(events):
    still = np.repeat(CLIPS[:, :1], 4, axis=1)
    varied = vary(still, events=events, flip=True)
    assert (varied == varied[:, :1]).all()


@pytest.mark.parametrize("events", ["wide", "nda", "roll"])
def test_a_clip_is_varied_the_same_whatever_batch_it_is_in(events):
    whole = vary(events=events, flip=True)
    for begin, end in [(0, 1), (1, 9), (9, 300)]:
        part = vary(CLIPS[begin:end], start=begin, events=events, flip=True)
        assert np.array_equal(part, whole[begin:end])


@pytest.mark.parametrize("events", ["wide", "nda", "roll"])
def test_counts_move_or_vanish_and_nothing_is_blurred(events):
    numbered = np.arange(1, 24 * 20 + 1, dtype=np.uint16).reshape(1, 1, 1, 24, 20)
    varied = vary(np.repeat(numbered, 200, axis=0), events=events)
    assert set(np.unique(varied)) <= set(range(24 * 20 + 1))
    if events == "roll":
        assert (np.sort(varied.reshape(200, -1)) == np.sort(numbered.ravel())).all()


def test_rolling_reaches_five_pixels_in_every_direction():
    y, x = np.nonzero(vary(pointer(), events="roll")[:, 0, 0].sum(0))
    assert (y.min() - 20, y.max() - 20) == (-5, 5)
    assert (x.min() - 32, x.max() - 32) == (-5, 5)


def test_wide_does_each_of_six_things_about_equally_often():
    clips = pointer(1200)
    varied = vary(clips, events="wide")[:, 0, 0]
    is_same = (varied == clips[:, 0, 0]).all((1, 2))
    y, x = np.unravel_index(varied.reshape(1200, -1).argmax(1), (41, 41))
    is_lost = varied.sum((1, 2)) == 0
    moved_x = (y == 20) & (x != 32) & ~is_lost
    moved_y = (x == 32) & (y != 20) & ~is_lost
    turned = (x != 32) & (y != 20) & ~is_lost
    # on the horizontal through the centre a shear moves nothing, and few boxes hit the dot
    assert is_same.mean() == pytest.approx(3 / 6, abs=0.1)
    assert moved_x.mean() == pytest.approx(1 / 6, abs=0.06)
    assert moved_y.mean() == pytest.approx(1 / 6 + 0.02, abs=0.08)
    assert turned.mean() > 0.05
    assert abs(x[moved_x] - 32).max() <= 5
    radius = np.hypot(y[turned] - 20, x[turned] - 20)
    assert abs(radius - 12).max() < 1.5


def test_nda_covers_half_a_side_turns_and_rolls():
    ones = np.ones((600, 1, 2, 40, 40), np.uint16)
    left = vary(ones, events="nda")[:, 0, 0].mean((1, 2))
    # both operations cover, one does, or none: a full box covers a quarter
    assert left.min() > 0.4
    assert (left == 1).mean() == pytest.approx(1 / 9, abs=0.05)  # two rolls
    assert ((left > 0.74) & (left < 0.76)).any()


def test_a_covered_box_of_wide_has_the_asked_area():
    ones = np.ones((2000, 1, 2, 40, 40), np.uint16)
    lost = 1 - vary(ones, events="wide")[:, 0, 0]
    areas = []
    for frame in lost:
        rows, columns = np.nonzero(frame)
        inner = (
            len(rows)
            and rows.min() > 0
            and rows.max() < 39
            and columns.min() > 0
            and columns.max() < 39
        )
        if inner and frame[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all():
            areas.append(frame.mean())
    assert len(areas) > 100
    assert max(areas) <= 0.12
    assert min(areas) < 0.02
