"""Image operations on whole batches of bytes, bit for bit those of Pillow.

The published recipes augment with Pillow, one image at a time in Python, which takes a tenth of
the time of a small network's training step. Here the same arithmetic runs on whole batches. Pillow
stays the truth: ``tests/data/test_pixels.py`` compares every operation with it, exactly. Looked at
and not taken: torchvision (its wheel for the pinned torch is a CUDA build that a CPU torch cannot
load) and kornia (one sub-policy for a whole batch, floats only).

Every operation takes images and one magnitude per image, and returns new images.
"""

from collections.abc import Callable
from functools import lru_cache
from math import cos, radians, sin

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
"""Images, ``[B, 3, H, W]``."""
Magnitudes = NDArray[np.float64]
"""One number per image, ``[B]``."""
Operation = Callable[[Bytes, Magnitudes], Bytes]

FILL = 128
"""The grey that comes in from outside the image."""


def invert(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Turn light into dark."""
    del magnitude
    return ~images


def posterize(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Keep the ``magnitude`` highest bits of every pixel."""
    mask = 256 - np.exp2(8 - magnitude)
    return images & mask.astype(np.uint8)[:, None, None, None]


def solarize(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Invert what is as light as ``magnitude`` or lighter."""
    threshold = np.ceil(magnitude).astype(np.int16)[:, None, None, None]
    is_light = images >= threshold
    return images ^ (is_light.view(np.uint8) * np.uint8(255))


def brightness(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Go from black (0) over the image (1) to more than that."""
    return _blend(np.float32(0), images, magnitude)


def contrast(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Go from the image's mean grey (0) over the image (1) to more than that."""
    pixels = images.shape[2] * images.shape[3]
    total = _luminance(images).sum((1, 2), dtype=np.int64)
    grey = np.floor(total / pixels + 0.5).astype(np.float32)
    return _blend(grey[:, None, None, None], images, magnitude)


def color(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Go from grey levels (0) over the image (1) to more than that."""
    return _blend(_luminance(images).astype(np.float32)[:, None], images, magnitude)


def sharpness(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Go from a smoothed image (0) over the image (1) to more than that."""
    wide = images.astype(np.uint16)
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    window = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    window += 4 * wide[:, :, 1:-1, 1:-1]  # the centre weighs 5 of 13
    smooth = images.astype(np.float32)  # Pillow leaves the border as it is
    smooth[:, :, 1:-1, 1:-1] = (2 * window + 13) // 26  # rounds; 13 is odd, so there are no ties
    return _blend(smooth, images, magnitude)


def autocontrast(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Stretch every channel so that it reaches from 0 to 255."""
    del magnitude
    planes = images.reshape(-1, images.shape[2] * images.shape[3])  # [B * 3, H * W]
    low = planes.min(1, keepdims=True).astype(np.float64)
    high = planes.max(1, keepdims=True).astype(np.float64)
    scale = 255 / np.maximum(high - low, 1)
    table = np.arange(256) * scale
    table -= low * scale
    table[high[:, 0] <= low[:, 0]] = np.arange(256)
    np.maximum(table, 0, out=table)
    table = np.minimum(table, 255, out=table).astype(np.uint8)
    return table.ravel()[_table_entries(planes)].reshape(images.shape)


def equalize(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Spread the levels of every channel so that each is used about as often."""
    del magnitude
    planes = images.reshape(-1, images.shape[2] * images.shape[3])  # [B * 3, H * W]
    entries = _table_entries(planes)
    counts = np.bincount(entries.ravel(), minlength=256 * len(planes)).reshape(-1, 256)
    counts = counts.astype(np.int32)
    lightest = planes.max(1, keepdims=True).astype(np.intp)
    step = (planes.shape[1] - np.take_along_axis(counts, lightest, 1)) // 255
    before = np.cumsum(counts, axis=1, dtype=np.int32) - counts
    table = (step // 2 + before) // np.maximum(step, 1)
    table[step[:, 0] == 0] = np.arange(256)
    table = np.minimum(table, 255, out=table).astype(np.uint8)
    return table.ravel()[entries].reshape(images.shape)


def translate_x(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Look ``magnitude`` widths to the right."""
    return _translate(images, magnitude * images.shape[3], axis=2)


def translate_y(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Look ``magnitude`` heights further down."""
    return _translate(images, magnitude * images.shape[2], axis=1)


def rotate(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Turn around the centre by ``magnitude`` degrees, counter-clockwise, nearest pixel."""
    height, width = images.shape[2:]
    turned = np.empty_like(images)
    for image, degrees, out in zip(images, magnitude.tolist(), turned, strict=True):
        source, is_outside = rotation(height, width, degrees)
        np.take(image.reshape(3, -1), source, axis=1, out=out.reshape(3, -1), mode="clip")
        out.reshape(3, -1)[:, is_outside] = FILL
    return turned


def shear_x(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Shift every row by ``magnitude`` times its distance from the top, bicubic."""
    return _shear(images, magnitude)


def shear_y(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Shift every column by ``magnitude`` times its distance from the left, bicubic."""
    return _shear(images.transpose(0, 1, 3, 2), magnitude).transpose(0, 1, 3, 2)


OPERATIONS: dict[str, Operation] = {
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "rotate": rotate,
    "color": color,
    "posterize": posterize,
    "solarize": solarize,
    "contrast": contrast,
    "sharpness": sharpness,
    "brightness": brightness,
    "autocontrast": autocontrast,
    "equalize": equalize,
    "invert": invert,
}


def rotation(height: int, width: int, degrees: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return :func:`nearest_source` of a turn, counter-clockwise."""
    angle = -radians(degrees % 360)
    c, s = round(cos(angle), 15), round(sin(angle), 15)
    return nearest_source(height, width, (c, s, -s, c))


@lru_cache(maxsize=64)
def nearest_source(
    height: int, width: int, matrix: tuple[float, float, float, float]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return which pixel each pixel of a transformed image shows, and which show the outside.

    The matrix maps a place in the result, seen from the centre, to a place in the image. The
    arithmetic is Pillow's (16 bits behind the point), so that the same pixels are chosen.
    Positions are flat, ``[H * W]``.
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


def _table_entries(planes: Bytes) -> NDArray[np.intp]:
    """Return where each pixel stands in a table that has 256 entries per plane."""
    return planes + 256 * np.arange(len(planes))[:, None]


def _luminance(images: Bytes) -> NDArray[np.uint32]:
    """Weigh red, green and blue into grey, in 16-bit fixed point: ``[B, H, W]``."""
    wide = images.astype(np.uint32)
    weighted = wide[:, 0] * np.uint32(19595)
    weighted += wide[:, 1] * np.uint32(38470)
    weighted += wide[:, 2] * np.uint32(7471)
    weighted += np.uint32(0x8000)
    return np.right_shift(weighted, np.uint32(16))


def _blend(origin: NDArray[np.float32] | np.float32, images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Go from ``origin`` to the images and beyond; single precision, cut off as in Pillow."""
    share = magnitude.astype(np.float32)[:, None, None, None]
    mixed = images - origin
    mixed *= share
    mixed += origin
    np.maximum(mixed, 0, out=mixed)
    return np.minimum(mixed, 255, out=mixed).astype(np.uint8)


def _translate(images: Bytes, distance: Magnitudes, *, axis: int) -> Bytes:
    moved = np.full_like(images, FILL)
    size = images.shape[axis + 1]
    shifts = np.floor(distance + 0.5).astype(int).clip(-size, size)
    for image, shift, out in zip(images, shifts.tolist(), moved, strict=True):
        target = slice(max(0, -shift), min(size, size - shift))
        source = slice(max(0, shift), min(size, size + shift))
        where = (slice(None),) * axis
        out[*where, target] = image[*where, source]
    return moved


def _shear(images: Bytes, magnitude: Magnitudes) -> Bytes:
    """Shear along the last axis: a cubic through four neighbours."""
    height, width = images.shape[2:]
    sheared = np.empty_like(images)
    for image, slope, out in zip(images, magnitude.tolist(), sheared, strict=True):
        source, weight, is_outside = _shear_taps(height, width, slope)
        a, b, c, d = image.reshape(3, -1).astype(np.int16).take(source, axis=1).swapaxes(0, 1)
        value = weight * (b - a - c + d)
        value += 2 * (a - b) + c - d
        value *= weight
        value += c - a
        value *= weight
        value += b
        value[:, is_outside] = FILL
        out[...] = value.clip(0, 255, out=value).reshape(3, height, width)
    return sheared


@lru_cache(maxsize=256)
def _shear_taps(
    height: int, width: int, slope: float
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
    """Return the four sources of every pixel ``[4, H * W]``, its fraction, and what is outside."""
    y, x = np.mgrid[:height, :width] + 0.5
    from_x = x + slope * y
    is_outside = (from_x < 0) | (from_x >= width)
    first = np.floor(from_x - 0.5)
    weight = (from_x - 0.5) - first
    columns = (first + np.arange(-1, 3)[:, None, None]).clip(0, width - 1).astype(np.intp)
    source = columns + width * np.arange(height)[:, None]
    return source.reshape(4, -1), weight.ravel(), np.flatnonzero(is_outside)
