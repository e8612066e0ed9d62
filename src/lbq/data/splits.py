"""The interface of an open data set: two splits that are read by index."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Split(Protocol):
    """Samples of one split: images are uint8, frames of events are counts."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """One class per sample."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        ...

    def read(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Read samples: ``[len(index), *shape]``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Splits:
    """An open data set."""

    train: Split
    test: Split
    num_classes: int
    digest: str
    """SHA-256 of the set's content, independent of its source."""


@dataclass(frozen=True)
class InMemory:
    """Samples in memory."""

    samples: NDArray[Any]
    labels: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.samples.shape[1:]

    def read(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Copy samples out: ``[len(index), *shape]``."""
        return self.samples[index]


def evenly_spaced(num_samples: int, limit: int | None) -> NDArray[np.int64]:
    """Return the indices of ``limit`` evenly spaced samples; all if None."""
    if limit is None or limit >= num_samples:
        return np.arange(num_samples)
    return np.arange(limit) * num_samples // limit
