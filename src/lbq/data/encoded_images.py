"""Encoded images: decoding with limits on formats and sizes, and splits of encoded images.

Pillow decodes whole images only; formats and sizes are checked before it allocates memory. A split
is packed once, or decoded whenever it is read.
"""

import hashlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lbq.data.autoaugment import Bytes
from lbq.data.packed import SplitContents
from lbq.data.sampler import to_integers, to_uniform
from lbq.data.splits import evenly_spaced
from lbq.errors import CorruptSample, FormatError, MissingExtraError, install_command

if TYPE_CHECKING:
    from PIL.Image import Image
else:
    Image = Any

FORMATS = ("JPEG", "PNG", "WEBP")
MAX_PIXELS = 100_000_000
"""More than any photograph in a training set; a small file can claim far more."""

_TRIES = 10
CROP_DRAWS = 2 * _TRIES + 2
"""Random numbers of a random crop: area and aspect ratio of every try, then a position."""
_SHAPES = (3 / 4, 4 / 3)
"""Smallest and largest aspect ratio of a crop."""


def decode_image(encoded: bytes, name: str) -> Image:
    """Decode an image to RGB.

    Images with 16 bits per channel keep the upper 8.

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
    """Scale the short side, then cut a square from the centre; keep an image of that size."""
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
    """Choose left, top, width and height of a random box.

    Area and aspect ratio have limits. After ten boxes that do not fit, the largest central box of
    an allowed aspect ratio is taken.
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
        raise MissingExtraError(
            f"decoding images needs Pillow: {install_command('data')}"
        ) from error
    return pillow


_HASHED_WHOLE = 64
_ALWAYS_ALLOWED = 1000
"""Number of classes that any set may have: subsets of ImageNet keep its labels."""
_NEIGHBOURS = 10
"""Number of consecutive images that are tried before a set counts as unreadable."""


class EncodedImages(Protocol):
    """A source of encoded images."""

    def fetch(self, i: int) -> tuple[str, bytes]:
        """Return the name of an image and its bytes."""
        ...

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of bytes of every image."""
        ...

    def select(self, index: NDArray[np.int64]) -> "EncodedImages":
        """Keep some of the images."""
        ...


@dataclass(frozen=True)
class EncodedSplit:
    """Encoded images and labels of one split."""

    labels: NDArray[np.int64]
    encoded: EncodedImages

    def __len__(self) -> int:
        return len(self.labels)

    def decode(self, i: int) -> Image:
        """Fetch and decode an image."""
        name, encoded = self.encoded.fetch(i)
        return decode_image(encoded, name)


@dataclass(frozen=True, kw_only=True)
class EncodedSet:
    """Both splits of a set, and its identity, the key of its packed form."""

    train: EncodedSplit
    test: EncodedSplit
    num_classes: int
    identity: dict[str, Any]

    def digest(self) -> str:
        """Hash all labels, the lengths of all images, and some images whole.

        Hashing all bytes of a set that is too large to be packed would take hours.
        """
        sha = hashlib.sha256(str(self.num_classes).encode())
        for rows in (self.train, self.test):
            sha.update(rows.labels.tobytes())
            sha.update(rows.encoded.lengths().tobytes())
            for i in evenly_spaced(len(rows), _HASHED_WHOLE).tolist():
                sha.update(rows.encoded.fetch(i)[1])
        return sha.hexdigest()


def count_classes(
    train: EncodedSplit, test: EncodedSplit, source: str, *, declared: int = 0
) -> int:
    """Return the number of classes: the declared number, or that of the training labels.

    Raises:
        FormatError: naming the image, if a label is negative (losses silently skip -100),
            if no training label is as large, or if there would be more classes than images.
    """
    highest = max(len(train) + len(test), _ALWAYS_ALLOWED, declared) - 1
    largest = max(int(train.labels.max()), declared - 1)
    for rows, most, expected in (
        (train, highest, f"0..{highest} for {len(train) + len(test)} images"),
        (test, largest, f"0..{largest}, as in the training set"),
    ):
        wrong = np.flatnonzero((rows.labels < 0) | (rows.labels > most))
        if len(wrong):
            i = int(wrong[0])
            raise FormatError(
                f"{rows.encoded.fetch(i)[0]} in {source} has the label {rows.labels[i]}, "
                f"expected a whole number in {expected}; {len(wrong)} images have such labels: "
                f"number the classes from 0 on, or leave these images out"
            )
    return 1 + largest


@dataclass(frozen=True)
class DecodedOnRead:
    """Images that are decoded whenever they are read, to squares of one size."""

    rows: EncodedSplit
    size: int
    replaces_corrupt: bool = False
    """Whether random crops of a corrupt image come from the next image of the set instead."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """One class per image."""
        return self.rows.labels

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return 3, self.size, self.size

    def read(self, index: NDArray[np.int64]) -> Bytes:
        """Decode central crops: ``[B, 3, size, size]``."""
        images = np.empty((len(index), *self.shape), np.uint8)
        short_side = round(self.size * 8 / 7)  # 256 for 224
        for out, i in zip(images, index.tolist(), strict=True):
            out[...] = to_bytes(resize_and_center_crop(self.rows.decode(i), self.size, short_side))
        return images

    def read_random_crops(
        self, index: NDArray[np.int64], area: tuple[float, float], bits: NDArray[np.uint64]
    ) -> tuple[Bytes, NDArray[np.int64], dict[int, str]]:
        """Decode a random crop of every image: ``[B, 3, size, size]``.

        Returns the crops, the indices of their images, and an error message for each image that was
        replaced, by index.
        """
        images = np.empty((len(index), *self.shape), np.uint8)
        index, replaced = index.copy(), dict[int, str]()
        for row, (out, mine) in enumerate(zip(images, bits, strict=True)):
            image = self._decode_or_next(row, index, replaced)
            out[...] = to_bytes(random_resized_crop(image, self.size, area, mine))
        return images, index, replaced

    def _decode_or_next(
        self, row: int, index: NDArray[np.int64], replaced: dict[int, str]
    ) -> Image:
        for _ in range(_NEIGHBOURS):
            i = int(index[row])
            try:
                return self.rows.decode(i)
            except CorruptSample as error:
                if not self.replaces_corrupt:
                    raise
                replaced[i] = str(error)
                index[row] = (i + 1) % len(self.rows)
        raise CorruptSample(
            f"{_NEIGHBOURS} images in a row cannot be decoded: {'; '.join(replaced.values())}"
        )


def image_contents(rows: EncodedSplit, size: int | None) -> SplitContents:
    """Describe decoded images for packing; all must have one size unless ``size`` is given."""
    width, height = rows.decode(0).size
    shape = (3, height, width) if size is None else (3, size, size)

    def samples() -> Iterator[Bytes]:
        for i in range(len(rows)):
            image = rows.decode(i)
            if size is not None:
                image = resize_and_center_crop(image, size, size)
            elif image.size != (width, height):
                raise FormatError(
                    f"image {i} has {image.width} x {image.height} pixels, the first one "
                    f"{width} x {height}; set a size to scale all images to"
                )
            yield to_bytes(image)

    return SplitContents(rows.labels, shape, np.uint8, samples())
