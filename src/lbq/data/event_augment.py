"""Augmentation of clips of event frames: the same operation for all frames of a clip.

Counts are never interpolated: each moves to the nearest pixel or is lost.
"""

from functools import lru_cache
from math import cos, radians, sin, sqrt, tan

import numpy as np
from numpy.typing import NDArray

from lbq.data.augment import AugmentConfig, Floats
from lbq.data.sampler import RandomStream, random_bits, to_integers, to_uniform

Counts = NDArray[np.uint16]
"""Frames of a clip, ``[T, 2, H, W]``."""
Bits = NDArray[np.uint64]

_FLIP, _FIRST, _SECOND, _NUM_DRAWS = 0, 1, 5, 9
"""Indices of a clip's random numbers, four per operation: part of what a seed means."""

_STRENGTHS = 31
"""Number of magnitudes of "wide", from -1 to 1 times the largest."""


def augment_clips(
    clips: NDArray[np.uint16], config: AugmentConfig, *, seed: int, epoch: int, start: int
) -> Floats:
    """Augment the clips at the positions from ``start`` on: ``[B, T, 2, H, W]``."""
    bits = random_bits(
        RandomStream.EVENTS, seed=seed, epoch=epoch, start=start, count=len(clips), width=_NUM_DRAWS
    )
    varied = np.empty(clips.shape, np.float32)
    for clip, mine, out in zip(clips, bits, varied, strict=True):
        is_flipped = config.flip and to_uniform(mine)[_FLIP] < 0.5
        out[...] = _vary(clip[..., ::-1] if is_flipped else clip, config, mine)
    return varied


def _vary(clip: Counts, config: AugmentConfig, bits: Bits) -> Counts:
    first, second = bits[_FIRST:_SECOND], bits[_SECOND:]
    match config.events:
        case "wide":
            return _wide(clip, first)
        case "nda":
            return _nda(_nda(clip, first), second)
        case "roll":
            return _roll(clip, first, 5)
        case "none":
            return clip


def _wide(clip: Counts, bits: Bits) -> Counts:
    """Apply one of six geometric operations, like Spikformer."""
    height, width = clip.shape[2:]
    strength = 2 * int(to_integers(bits, _STRENGTHS)[1]) / (_STRENGTHS - 1) - 1  # -1 .. 1
    match int(to_integers(bits, 6)[0]):
        case 0:
            return clip
        case 1:
            slope = tan(0.3 * strength)
            return _take(clip, _nearest_source(height, width, (1.0, slope, 0.0, 1.0)))
        case 2:
            return _shift(clip, int(5 * strength), axis=3)
        case 3:
            return _shift(clip, int(5 * strength), axis=2)
        case 4:
            return _take(clip, _rotation(height, width, 30 * strength))
        case _:
            share = 0.001 + (0.11 - 0.001) * float(to_uniform(bits)[1])
            side = round(sqrt(share * height * width))
            top, left = (
                to_integers(bits[2:3], height - side + 1),
                to_integers(bits[3:], width - side + 1),
            )
            return _cover(clip, int(top[0]), int(left[0]), side, side)


def _nda(clip: Counts, bits: Bits) -> Counts:
    """Roll, rotate or cover: the neuromorphic data augmentation that LM-HT uses."""
    height, width = clip.shape[2:]
    match int(to_integers(bits, 3)[0]):
        case 0:
            return _roll(clip, bits, 7)
        case 1:
            return _take(clip, _rotation(height, width, 90 * float(to_uniform(bits)[1]) - 45))
        case _:
            tall, wide = height // 2, width // 2
            y, x = int(to_integers(bits[2:3], height)[0]), int(to_integers(bits[3:], width)[0])
            return _cover(clip, y - tall // 2, x - wide // 2, 2 * (tall // 2), 2 * (wide // 2))


def _roll(clip: Counts, bits: Bits, furthest: int) -> Counts:
    """Shift around the border, up to ``furthest`` pixels both ways."""
    shifts = to_integers(bits[2:], 2 * furthest + 1) - furthest
    return np.roll(clip, (int(shifts[0]), int(shifts[1])), axis=(2, 3))


def _shift(clip: Counts, distance: int, *, axis: int) -> Counts:
    """Shift and fill with zeros."""
    moved = np.roll(clip, distance, axis=axis)
    entered = slice(distance) if distance > 0 else slice(moved.shape[axis] + distance, None)
    if distance:
        moved[(slice(None),) * axis + (entered,)] = 0
    return moved


def _take(clip: Counts, source: tuple[NDArray[np.intp], NDArray[np.intp]]) -> Counts:
    place, is_outside = source
    flat = clip.reshape(-1, clip.shape[2] * clip.shape[3]).take(place, axis=1)
    flat[:, is_outside] = 0
    return flat.reshape(clip.shape)


def _cover(clip: Counts, top: int, left: int, height: int, width: int) -> Counts:
    covered = clip.copy()
    covered[:, :, max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = 0
    return covered


def _rotation(height: int, width: int, degrees: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the source pixels of a counter-clockwise rotation."""
    angle = -radians(degrees % 360)
    c, s = round(cos(angle), 15), round(sin(angle), 15)
    return _nearest_source(height, width, (c, s, -s, c))


@lru_cache(maxsize=64)
def _nearest_source(
    height: int, width: int, matrix: tuple[float, float, float, float]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the source of each pixel of a transformed frame, and the pixels that have none.

    The matrix maps a position in the result, relative to the centre, to a position in the frame, in
    Pillow's fixed-point arithmetic (16 fractional bits). Positions are flat, ``[H * W]``.
    """
    xx, xy, yx, yy = matrix
    middle_x, middle_y = width / 2, height / 2
    first_x = xx * -middle_x + xy * -middle_y + middle_x + 0.5 * xx + 0.5 * xy
    first_y = yx * -middle_x + yy * -middle_y + middle_y + 0.5 * yx + 0.5 * yy
    xx, xy, yx, yy, x0, y0 = (
        int(np.floor(value * 65536 + 0.5)) for value in (*matrix, first_x, first_y)
    )
    y, x = np.mgrid[:height, :width]
    from_x = (x0 + xx * x + xy * y) >> 16
    from_y = (y0 + yx * x + yy * y) >> 16
    is_outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    source = np.where(is_outside, 0, from_y * width + from_x)
    return source.ravel(), np.flatnonzero(is_outside)
