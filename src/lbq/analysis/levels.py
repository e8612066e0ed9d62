"""How a network uses its levels: who emits, which levels, and how evenly."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lbq.errors import LevelError


@dataclass(frozen=True, kw_only=True)
class LayerLevels:
    """How often one layer emitted each level, over neurons, images and timesteps."""

    layer: str
    counts: tuple[int, ...]
    """Of levels 0, 1, .., max_level; a signed level counts by its size."""
    is_signed: bool = False
    """Whether levels below zero are among them."""

    @property
    def max_level(self) -> int:
        """Largest level that the layer could have emitted."""
        return len(self.counts) - 1

    @property
    def active(self) -> int:
        """Levels that are not zero."""
        return sum(self.counts[1:])

    @property
    def active_ratio(self) -> float:
        """Share of levels that are not zero."""
        return self.active / max(1, sum(self.counts))

    @property
    def shares(self) -> tuple[float, ...] | None:
        """P(k | k > 0) for k = 1 .. max_level; None for a layer that was silent."""
        if not self.active:
            return None
        return tuple(count / self.active for count in self.counts[1:])

    @property
    def entropy(self) -> float | None:
        """Normalised conditional burst entropy: H(k | k > 0) / log(max_level), from 0 to 1.

        1 if all levels above zero are emitted equally often. None for a layer that was silent, and
        for one with a single level, which has no choice.
        """
        if self.shares is None or self.max_level == 1:
            return None
        nats = -sum(share * math.log(share) for share in self.shares if share)
        return nats / math.log(self.max_level)


@dataclass(frozen=True, kw_only=True)
class LevelProfile:
    """The levels of a network. Averages count every layer once, as the paper's do."""

    num_images: int
    layers: tuple[LayerLevels, ...]

    @property
    def active_ratio(self) -> float:
        """Mean of the layers' active ratios."""
        return sum(layer.active_ratio for layer in self.layers) / max(1, len(self.layers))

    @property
    def entropy(self) -> float | None:
        """Mean of the layers' entropies; None if no layer has one."""
        return _mean(layer.entropy for layer in self.layers)

    @property
    def max_level(self) -> int:
        """Largest level of any layer."""
        return max((layer.max_level for layer in self.layers), default=0)

    @property
    def is_signed(self) -> bool:
        """Whether any layer emits levels below zero."""
        return any(layer.is_signed for layer in self.layers)

    def share(self, level: int) -> float | None:
        """Mean over the layers of P(level | k > 0); silent layers have none."""
        return _mean(
            layer.shares[level - 1] if level <= layer.max_level else 0.0
            for layer in self.layers
            if layer.shares is not None
        )


class LevelCounts:
    """Counts how often every layer emits every level; use it as a watch.

    Example:
        >>> counts = LevelCounts({layer: n.max_level for layer, n in named_neurons(model)})
        >>> with lbq.watch_levels(model, counts):
        ...     model(images)
        >>> counts.profile().active_ratio

    Args:
        max_levels: the largest level of every layer that will be watched.
    """

    def __init__(self, max_levels: dict[str, int]) -> None:
        self._counts = {
            layer: torch.zeros(max_level + 1, dtype=torch.int64)
            for layer, max_level in max_levels.items()
        }
        self._signed: set[str] = set()
        self._images: dict[tuple[str, int], int] = {}

    def __call__(self, layer: str, t: int, level: Tensor) -> None:
        """Add one instant of one layer: ``level`` is ``[B, *n]`` in small integers."""
        if layer not in self._counts:
            known = ", ".join(self._counts) or "none"
            raise LevelError(f"levels of {layer!r} arrived, but the layers named are {known}")
        counts = self._counts[layer]
        if level.dtype == torch.int8:  # only levels with a sign come in it
            self._signed.add(layer)
        size = level.abs() if layer in self._signed else level
        found = torch.bincount(size.flatten(), minlength=len(counts)).cpu()
        if len(found) > len(counts):
            raise LevelError(
                f"{layer} emitted level {len(found) - 1}, but its largest is {len(counts) - 1}"
            )
        counts += found
        self._images[layer, t] = self._images.get((layer, t), 0) + len(level)

    def profile(self) -> LevelProfile:
        """Return what was counted so far, in the order in which the layers were named."""
        return LevelProfile(
            num_images=max(self._images.values(), default=0),
            layers=tuple(
                LayerLevels(
                    layer=layer, counts=tuple(counts.tolist()), is_signed=layer in self._signed
                )
                for layer, counts in self._counts.items()
            ),
        )


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
