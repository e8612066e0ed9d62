"""The batch of a step."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Inputs and targets of one step."""

    x: Tensor
    """Images ``[B, C, H, W]``, frames of events ``[T, B, 2, H, W]``, or what a data set of the
    caller's own returns."""
    target: Tensor
    """Classes ``[B]``, or the share of every class ``[B, classes]`` where samples are mixed."""
    sample_ids: Tensor
    """Indices of the samples in the data set, ``[B]``."""


@dataclass(frozen=True)
class LoadedBatch:
    """A batch, and an error message for each corrupt sample that was replaced, by index."""

    batch: Batch
    replaced: dict[int, str] = field(default_factory=dict)
