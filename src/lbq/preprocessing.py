"""``Pixels``: how the inputs of a network were normalised in training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lbq.errors import ParameterError


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Normalisation of the inputs in training: ``(byte / 255 - mean) / std``.

    Pretrained networks have it as ``model.preprocessing``, where :func:`lbq.quantize` finds it.
    Set the same attribute on your own network; None means integers 0..255, not normalised.

    Example:
        >>> cifar10 = lbq.Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
        >>> cifar10.mean
        (0.4914, 0.4822, 0.4465)
    """

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        """Raise for values that cannot normalise ``byte / 255``."""
        if not all(map(math.isfinite, self.mean)):
            raise ParameterError(f"means must be finite, got {tuple(self.mean)}")
        if not all(math.isfinite(std) and std > 0 for std in self.std):
            raise ParameterError(f"deviations must be finite and positive, got {tuple(self.std)}")
        if not all(0 <= mean <= 1 for mean in self.mean) or not all(std <= 1 for std in self.std):
            raise ParameterError(
                f"means and deviations must be those of byte / 255, in 0..1, got means "
                f"{tuple(self.mean)} and deviations {tuple(self.std)}; divide those of bytes by 255"
            )
