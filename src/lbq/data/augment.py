"""What happens to a training image: crop, flip, policy, normalise, cut out; in this order.

Everything is a function of the image and its random bits, and works on whole batches. Mixing
images with each other comes after it and lives in ``mixing.py``; what event frames get, in
``event_augment.py``.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lbq.data.mixing import MixConfig
from lbq.data.pixels import Bytes
from lbq.data.policies import NUM_DRAWS as POLICY_DRAWS
from lbq.data.policies import POLICIES, PolicyName
from lbq.data.sampler import RandomStream, random_bits, to_integers, to_uniform
from lbq.errors import ParameterError
from lbq.ranges import Range, check_ranges

Floats = NDArray[np.float32]

_CROP, _FLIP, _CUTOUT, _POLICY = 0, 2, 3, 5
_NUM_DRAWS = _POLICY + POLICY_DRAWS
"""Which of an image's random numbers is for what: part of what a seed means."""


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """Per channel, on values in 0..1: subtract the mean, divide by the deviation."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        """Refuse numbers of another scale, such as 0..255."""
        check_ranges(self, ParameterError, mean=Range(0, 1), std=Range(0, 1, is_open_below=True))


CIFAR10 = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
"""As printed in the recipes; the deviations are not those of all pixels, which are near 0.25."""
CIFAR100 = Normalization(
    mean=(129.3 / 255, 124.1 / 255, 112.4 / 255), std=(68.2 / 255, 65.4 / 255, 70.4 / 255)
)
IMAGENET = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
UNIT = Normalization(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
"""Leave values in 0..1."""


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How training samples are varied; the test samples are only normalised."""

    crop: Literal["none", "pad", "resized"] = "none"
    """"pad": a place in the image with ``pad`` black pixels around it (CIFAR); "resized": a random
    box, scaled to ``size`` (ImageNet). The latter decodes every image anew."""
    pad: int = 4
    """Width of the border for "pad"."""
    area: tuple[float, float] = (0.08, 1.0)
    """Least and largest share of the image that "resized" keeps."""
    flip: bool = False
    """Mirror half of the samples."""
    policy: PolicyName | None = None
    """The AutoAugment policy."""
    normalization: Normalization = CIFAR10
    """For images, training and test; event counts stay as they are."""
    cutout: int = 0
    """Side of the square that becomes zero after normalising; its centre lies in the image, and
    what hangs over the border is lost. 0: none."""
    events: Literal["none", "wide", "nda", "roll"] = "none"
    """For event frames, per clip: "wide" one of six geometric operations (Spikformer), "nda" two of
    {roll, rotate, cut out} (LM-HT), "roll" up to 5 pixels (TET)."""
    mix: MixConfig = field(default_factory=MixConfig)
    """Mixup and CutMix."""

    def __post_init__(self) -> None:
        """Refuse what no image could be given."""
        check_ranges(
            self,
            ParameterError,
            pad=Range(0, 2**14),
            cutout=Range(0, 2**14),
            area=Range(0, 1, is_open_below=True),
        )
        if self.area[0] > self.area[1]:
            raise ParameterError(f"area must be the least share, then the largest, got {self.area}")


def augment_images(
    images: Bytes, config: AugmentConfig, *, seed: int, epoch: int, start: int
) -> Floats:
    """Vary and normalise the images of the positions from ``start`` on: ``[B, 3, H, W]``."""
    bits = random_bits(
        RandomStream.IMAGE, seed=seed, epoch=epoch, start=start, count=len(images), width=_NUM_DRAWS
    )
    pad = config.pad if config.crop == "pad" else 0
    if pad or config.flip:
        images = _crop_and_flip(images, bits, pad=pad, flip=config.flip)
    if config.policy is not None:
        images = POLICIES[config.policy].apply(images, bits[:, _POLICY:])
    values = normalize(images, config.normalization)
    if config.cutout:
        height, width = images.shape[2:]
        y, x = to_integers(bits[:, _CUTOUT], height), to_integers(bits[:, _CUTOUT + 1], width)
        _cut_out(values, y, x, config.cutout // 2)
    return values


def normalize(images: Bytes, normalization: Normalization) -> Floats:
    """Turn bytes into numbers around zero."""
    mean, std = np.array(normalization.mean), np.array(normalization.std)
    scale = (1 / (255 * std)).astype(np.float32)[:, None, None]
    offset = (-mean / std).astype(np.float32)[:, None, None]
    values = images * scale
    values += offset
    return values


def _crop_and_flip(images: Bytes, bits: NDArray[np.uint64], *, pad: int, flip: bool) -> Bytes:
    height, width = images.shape[2:]
    wide = np.zeros((*images.shape[:2], height + 2 * pad, width + 2 * pad), np.uint8)
    wide[:, :, pad : pad + height, pad : pad + width] = images
    y, x = to_integers(bits[:, _CROP], 2 * pad + 1), to_integers(bits[:, _CROP + 1], 2 * pad + 1)
    is_flipped = (to_uniform(bits[:, _FLIP]) < 0.5) & flip
    cropped = np.empty_like(images)
    places = zip(y.tolist(), x.tolist(), is_flipped.tolist(), strict=True)
    for image, out, (top, left, mirror) in zip(wide, cropped, places, strict=True):
        window = image[:, top : top + height, left : left + width]
        out[...] = window[:, :, ::-1] if mirror else window
    return cropped


def _cut_out(values: Floats, y: NDArray[np.int64], x: NDArray[np.int64], half: int) -> None:
    """Set a box around every image's ``(y, x)`` to zero, in place.

    A box of odd side is one pixel smaller, as in the published code.
    """
    top, left = (y - half).clip(0).tolist(), (x - half).clip(0).tolist()
    bottom, right = (y + half).tolist(), (x + half).tolist()
    for value, y0, y1, x0, x1 in zip(values, top, bottom, left, right, strict=True):
        value[:, y0:y1, x0:x1] = 0
