"""The batch of a step."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lbq.data.autoaugment import Bytes
from lbq.data.shared_buffers import BufferSlot


class Batch(NamedTuple):
    """Inputs and targets of one step."""

    x: Tensor
    """Images ``[B, C, H, W]``, frames of events ``[T, B, 2, H, W]``, or the inputs of the caller's
    own data set."""
    target: Tensor
    """Classes ``[B]``, or the share of every class ``[B, classes]`` where samples are mixed."""
    sample_ids: Tensor
    """Indices of the samples in the data set, ``[B]``."""


@dataclass(frozen=True, kw_only=True)
class LoadedBatch:
    """A batch from a worker: arrays where possible, since a tensor costs a file descriptor."""

    x: Tensor | Bytes | BufferSlot
    """As in :class:`Batch`; if not normalised yet, bytes, or the place of the bytes."""
    target: Tensor | NDArray[Any]
    sample_ids: NDArray[np.int64]
    replaced: dict[int, str] = field(default_factory=dict[int, str])
    """An error message for each corrupt sample that was replaced, by index."""
