import numpy as np
import pytest

from lbq.data.synthetic import open_synthetic


def make(size=None, timesteps=None, limits=(None, None)):
    return open_synthetic(size=size, timesteps=timesteps, limits=limits)


def linear_accuracy(data):
    """Fit one weight per value and class by least squares, then count right answers."""
    train, test = (
        split.read(np.arange(len(split.labels))).reshape(len(split.labels), -1).astype(float)
        for split in (data.train, data.test)
    )
    train, test = (np.c_[part, np.full(len(part), 100.0)] for part in (train, test))
    weights = np.linalg.solve(
        train.T @ train + 1e3 * np.eye(train.shape[1]), train.T @ np.eye(10)[data.train.labels]
    )
    return float(((test @ weights).argmax(1) == data.test.labels).mean())


@pytest.mark.parametrize("timesteps", [None, 3])
def test_a_linear_classifier_learns_it(timesteps):
    assert linear_accuracy(make(size=8, timesteps=timesteps)) > 0.95


def test_images_are_bytes_and_clips_are_counts():
    images, clips = make(), make(timesteps=4)
    assert images.train.shape == (3, 16, 16)
    assert images.train.read(np.array([0])).dtype == np.uint8
    assert clips.train.shape == (4, 2, 16, 16)
    assert clips.train.read(np.arange(50)).max() == 2


def test_it_is_the_same_every_time_and_its_splits_differ():
    first, second = make(), make()
    assert first.digest == second.digest == DIGEST
    index = np.arange(500)
    assert not np.array_equal(first.train.read(index), first.test.read(index))


def test_its_size_is_a_choice():
    data = make(size=20, limits=(30, 7))
    assert (len(data.train.labels), len(data.test.labels)) == (30, 7)
    assert data.train.shape == (3, 20, 20)


DIGEST = "9b82c0f4f28a73d27831bc0eecc2b365893047c7975fe975161b83880cf88092"
