"""Augment images: crop, flip, AutoAugment, normalise, cutout; Mixup and CutMix.

An augmented image is a function of the image and its random bits. Mixing pairs neighbours in the
epoch: positions 0 and 1, 2 and 3, and so on. The order is random, so this is as good as any
pairing, and partners almost always belong to the same rank. One coefficient holds for a whole
global batch, as in the published recipes. Augmentation of event frames is in ``event_augment.py``.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lbq.data.autoaugment import NUM_DRAWS as POLICY_DRAWS
from lbq.data.autoaugment import Bytes, PolicyName, apply_policy
from lbq.data.sampler import RandomStream, random_bits, to_integers, to_uniform
from lbq.errors import ParameterError
from lbq.ranges import Range, check_ranges

Floats = NDArray[np.float32]

_CROP, _FLIP, _CUTOUT, _POLICY = 0, 2, 3, 5
_NUM_DRAWS = _POLICY + POLICY_DRAWS
"""Indices of an image's random numbers by use: part of what a seed means."""


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """Mean and standard deviation of each channel, for values in 0..1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        """Raise ParameterError for another scale, such as 0..255."""
        check_ranges(self, ParameterError, mean=Range(0, 1), std=Range(0, 1, is_open_below=True))


CIFAR10 = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
"""As printed in the recipes; the deviations are not those of all pixels, which are near 0.25."""
CIFAR100 = Normalization(
    mean=(129.3 / 255, 124.1 / 255, 112.4 / 255), std=(68.2 / 255, 65.4 / 255, 70.4 / 255)
)
IMAGENET = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
UNIT = Normalization(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
"""Keeps values in 0..1."""


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """Probability and strength of Mixup and CutMix; both are off by default."""

    mixup: float = 0.0
    """Blend two samples with a share from Beta(mixup, mixup); 0: never."""
    cutmix: float = 0.0
    """Paste a box of one sample into another, its area from Beta(cutmix, cutmix); 0: never."""
    prob: float = 1.0
    """Share of the global batches that are mixed."""
    switch: float = 0.5
    """Share of the mixed batches that get CutMix, where both are on."""

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
        check_ranges(
            self,
            ParameterError,
            mixup=Range(0),
            cutmix=Range(0),
            prob=Range(0, 1),
            switch=Range(0, 1),
        )

    @property
    def is_on(self) -> bool:
        """Whether any batch is mixed; targets are soft then."""
        return self.prob > 0 and (self.mixup > 0 or self.cutmix > 0)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Augmentation of training samples; test samples are only normalised."""

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
    """For images, training and test; event counts are not changed."""
    cutout: int = 0
    """Side of the square that becomes zero after normalising; its centre lies in the image, and
    the part beyond the border is lost. 0: none."""
    events: Literal["none", "wide", "nda", "roll"] = "none"
    """For event frames, per clip: "wide" one of six geometric operations (Spikformer), "nda" two of
    {roll, rotate, cut out} (LM-HT), "roll" up to 5 pixels (TET)."""
    mix: MixConfig = field(default_factory=MixConfig)
    """Mixup and CutMix."""

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range."""
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
) -> Bytes | Floats:
    """Augment the images at the positions from ``start`` on: ``[B, 3, H, W]``.

    With cutout the result is normalised, since no byte stands for the zero of a cut-out pixel.
    Otherwise it is bytes, a quarter of the memory, for :func:`normalize` to convert later.
    """
    bits = random_bits(
        RandomStream.IMAGE, seed=seed, epoch=epoch, start=start, count=len(images), width=_NUM_DRAWS
    )
    pad = config.pad if config.crop == "pad" else 0
    if pad or config.flip:
        images = _crop_and_flip(images, bits, pad=pad, flip=config.flip)
    if config.policy is not None:
        images = apply_policy(config.policy, images, bits[:, _POLICY:])
    if not config.cutout:
        return images
    values = normalize(images, config.normalization)
    height, width = images.shape[2:]
    y, x = to_integers(bits[:, _CUTOUT], height), to_integers(bits[:, _CUTOUT + 1], width)
    _cut_out(values, y, x, config.cutout // 2)
    return values


def normalize(images: NDArray[Any], normalization: Normalization) -> Floats:
    """Convert bytes to normalised float32; normalised values stay unchanged."""
    if images.dtype != np.uint8:
        return images
    mean, std = np.array(normalization.mean), np.array(normalization.std)
    scale = (1 / (255 * std)).astype(np.float32)[:, None, None]
    offset = (-mean / std).astype(np.float32)[:, None, None]
    values = images * scale
    values += offset
    return values


def _crop_and_flip(images: Bytes, bits: NDArray[np.uint64], *, pad: int, flip: bool) -> Bytes:
    height, width = images.shape[2:]
    wide = images
    if pad:
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


@dataclass(frozen=True)
class Mix:
    """How one global batch is mixed: share kept by a sample, and box swapped."""

    kept: float
    box: tuple[slice, slice] | None = None


def choose_mix(
    config: MixConfig, *, seed: int, epoch: int, step: int, size: tuple[int, int]
) -> Mix:
    """Choose how the global batch of a step is mixed; ``size`` is height and width."""
    bits = random_bits(RandomStream.MIXING, seed=seed, epoch=epoch, start=step, count=1, width=8)[0]
    chance, switch = to_uniform(bits[:2])
    if not config.is_on or chance >= config.prob:
        return Mix(1.0)
    by_box = config.cutmix > 0 and (config.mixup == 0 or switch < config.switch)
    alpha = config.cutmix if by_box else config.mixup
    kept = float(np.random.Generator(np.random.Philox(key=bits[4:6])).beta(alpha, alpha))
    if not by_box:
        return Mix(kept)
    height, width = size
    box = (
        _side(height, kept, int(to_integers(bits[2:3], height)[0])),
        _side(width, kept, int(to_integers(bits[3:4], width)[0])),
    )
    pasted = (box[0].stop - box[0].start) * (box[1].stop - box[1].start)
    return Mix(1 - pasted / (height * width), box)


def mix_pairs(values: Floats, mix: Mix) -> None:
    """Mix neighbours 0 and 1, 2 and 3, ... of ``[B, ..., H, W]``, in place.

    A last one without a neighbour stays unchanged.
    """
    paired = len(values) & ~1
    first, second = values[0:paired:2], values[1:paired:2]
    if mix.box is not None:
        pasted = first[..., *mix.box].copy()
        first[..., *mix.box] = second[..., *mix.box]
        second[..., *mix.box] = pasted
    elif mix.kept < 1:
        moved = first - second
        moved *= np.float32(1 - mix.kept)
        first -= moved
        second += moved


def soft_targets(labels: NDArray[np.int64], kept: float, num_classes: int) -> Floats:
    """Share the targets of neighbours: ``[B, classes]``, rows sum to one."""
    rows = np.arange(len(labels))
    partners = labels[np.minimum(rows ^ 1, len(rows) - 1)]
    targets = np.zeros((len(labels), num_classes), np.float32)
    targets[rows, labels] = kept
    targets[rows, partners] += np.float32(1 - kept)
    return targets


def _side(size: int, kept: float, centre: int) -> slice:
    """Cut a side of the box around its centre, clipped at the border."""
    half = int(size * sqrt(1 - kept)) // 2
    return slice(max(centre - half, 0), min(centre + half, size))
