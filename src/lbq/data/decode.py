"""From encoded bytes to pixels: with a guard around everything that a file can get wrong.

Pillow decodes, whole images only; formats and sizes are limited before it allocates anything.
"""

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lbq.data.pixels import Bytes
from lbq.data.sampler import to_integers, to_uniform
from lbq.errors import CorruptSample, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    Image = Any

FORMATS = ("JPEG", "PNG", "WEBP")
MAX_PIXELS = 100_000_000
"""More than any photograph in a training set; a small file can claim far more."""

_TRIES = 10
CROP_DRAWS = 2 * _TRIES + 2
"""Random numbers that a random crop takes: area and shape for every try, then a place."""
_SHAPES = (3 / 4, 4 / 3)
"""Narrowest and widest crop."""


def decode_image(encoded: bytes, name: str) -> Image:
    """Decode an image to RGB.

    Of 16 bits per channel the upper 8 are kept.

    Raises:
        CorruptSample: if any part of it cannot be decoded, naming the image.
    """
    pillow = _pillow()
    try:
        image = pillow.open(io.BytesIO(encoded), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
        if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip at 255
            image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever their format trips over
        raise CorruptSample(f"{name} is not a whole {', '.join(FORMATS)} image: {error}") from error


def to_bytes(image: Image) -> Bytes:
    """Return the pixels as ``[3, H, W]``."""
    return np.asarray(image).transpose(2, 0, 1)


def resize_and_center_crop(image: Image, size: int, short_side: int) -> Image:
    """Scale the short side, then cut a square from the centre; what has the size stays as it is."""
    width, height = image.size
    if width == height == short_side == size:
        return image
    # the long side is cut off, not rounded, as in the recipes' library
    width, height = (
        short_side if width <= height else int(short_side * width / height),
        short_side if height <= width else int(short_side * height / width),
    )
    image = image.resize((width, height), _pillow().Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def random_resized_crop(
    image: Image, size: int, area: tuple[float, float], bits: NDArray[np.uint64]
) -> Image:
    """Scale a random box of the image to a square: ``bits`` are ``[CROP_DRAWS]``."""
    left, top, width, height = random_crop_box(*image.size, area, bits)
    image = image.crop((left, top, left + width, top + height))
    return image.resize((size, size), _pillow().Resampling.BILINEAR)


def random_crop_box(
    width: int, height: int, area: tuple[float, float], bits: NDArray[np.uint64]
) -> tuple[int, int, int, int]:
    """Choose left, top, width and height of a box with a share of the area and some shape.

    After ten boxes that do not fit, the largest central one of an allowed shape is taken.
    """
    chance = to_uniform(bits)
    low, high = math.log(_SHAPES[0]), math.log(_SHAPES[1])
    for i in range(_TRIES):
        pixels = width * height * (area[0] + (area[1] - area[0]) * chance[2 * i])
        shape = math.exp(low + (high - low) * chance[2 * i + 1])
        w, h = round(math.sqrt(pixels * shape)), round(math.sqrt(pixels / shape))
        if 0 < w <= width and 0 < h <= height:
            left = int(to_integers(bits[-2:-1], width - w + 1)[0])
            top = int(to_integers(bits[-1:], height - h + 1)[0])
            return left, top, w, h
    w = min(width, round(height * _SHAPES[1]))
    h = min(height, round(width / _SHAPES[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def _pillow() -> Any:
    try:
        from PIL import Image as pillow  # noqa: N813, PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("decoding images needs Pillow: pip install 'lbq[data]'") from error
    return pillow
