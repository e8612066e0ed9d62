"""A small set that needs no file and no extra: for tests, examples and first runs.

Every class has its own pattern, every sample its own contrast and noise. The set depends only on
its size, is the same on every machine, and is easy: a linear classifier learns it.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from lbq.data.sampler import RandomStream, random_bits, to_uniform
from lbq.data.splits import InMemory, Splits

NUM_CLASSES = 10
NUM_TRAIN, NUM_TEST = 2000, 500
SIZE = 16

_PATTERNS = 2
"""The part of the random numbers for patterns; 0 and 1 are for the two splits."""
_COARSE = 4
"""Squares along a side of a pattern."""


def open_synthetic(
    *, size: int | None, timesteps: int | None, limits: tuple[int | None, int | None]
) -> Splits:
    """Make both splits: images, or clips of event frames if ``timesteps`` is given.

    Args:
        size: side of a sample.
        timesteps: number of frames of a clip.
        limits: how many samples to make instead of 2000 and 500.
    """
    size = SIZE if size is None else size
    counts = [
        default if limit is None else limit
        for default, limit in zip((NUM_TRAIN, NUM_TEST), limits, strict=True)
    ]
    train, test = (
        InMemory(
            _images(count, size, part)
            if timesteps is None
            else _clips(count, size, timesteps, part),
            _labels(count),
        )
        for part, count in enumerate(counts)
    )
    sha = hashlib.sha256(train.samples.tobytes() + test.samples.tobytes())
    return Splits(train=train, test=test, num_classes=NUM_CLASSES, digest=sha.hexdigest())


def _images(count: int, size: int, part: int) -> NDArray[np.uint8]:
    """Make images ``[N, 3, size, size]``: a pattern of some contrast under grain."""
    noise = _noise(count, 1 + 3 * size * size, part)
    contrast = 0.5 + noise[:, 0, None, None, None]
    grain = noise[:, 1:].reshape(count, 3, size, size) - 0.5
    images = 128 + 50 * contrast * _patterns(3, size)[_labels(count)] + 120 * grain
    return images.clip(0, 255).astype(np.uint8)


def _clips(count: int, size: int, timesteps: int, part: int) -> NDArray[np.uint16]:
    """Make event counts ``[N, T, 2, size, size]``: a pattern that wanders to the right."""
    chance = _noise(count, timesteps * 2 * size * size, part)
    chance = chance.reshape(count, timesteps, 2, size, size)
    pattern = _patterns(2, size) > 0
    moving = np.stack([np.roll(pattern, t, axis=-1) for t in range(timesteps)], axis=1)
    rate = 0.1 + 0.6 * moving[_labels(count)]
    return (chance < rate).astype(np.uint16) + (chance < rate / 4)


def _labels(count: int) -> NDArray[np.int64]:
    return np.arange(count) % NUM_CLASSES


def _patterns(channels: int, size: int) -> NDArray[np.float64]:
    """Return a pattern of +1 and -1 per class: ``[classes, channels, size, size]``."""
    bits = _noise(NUM_CLASSES, channels * _COARSE**2, _PATTERNS)
    coarse = np.where(bits < 0.5, -1.0, 1.0).reshape(-1, channels, _COARSE, _COARSE)
    place = np.arange(size) * _COARSE // size
    return coarse[:, :, place][..., place]


def _noise(count: int, width: int, part: int) -> NDArray[np.float64]:
    return to_uniform(
        random_bits(RandomStream.SYNTHETIC, seed=0, epoch=part, start=0, count=count, width=width)
    )
