"""Mixup and CutMix: pairs of samples share their pixels, and their targets accordingly.

Neighbours in the epoch are partners: positions 0 and 1, 2 and 3, and so on. The order is random, so
this is as good as any pairing, and partners almost always lie in the same rank's part of the batch.
One coefficient holds for a whole global batch, as in the recipes' library. Smoothing of labels
belongs to the loss.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from lbq.data.sampler import RandomStream, random_bits, to_integers, to_uniform
from lbq.errors import ParameterError
from lbq.ranges import Range, check_ranges

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class MixConfig:
    """How often and how strongly samples are mixed; all zero is not at all."""

    mixup: float = 0.0
    """Blend two samples with a share from Beta(mixup, mixup); 0: never."""
    cutmix: float = 0.0
    """Paste a box of one sample into another, its area from Beta(cutmix, cutmix); 0: never."""
    prob: float = 1.0
    """Share of the global batches that are mixed."""
    switch: float = 0.5
    """Share of the mixed batches that get CutMix, where both are on."""

    def __post_init__(self) -> None:
        """Refuse what is no distribution and no probability."""
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


@dataclass(frozen=True)
class Mix:
    """What one global batch gets: the share that a sample keeps, and the box it gives away."""

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

    A last one without a neighbour stays as it is.
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
