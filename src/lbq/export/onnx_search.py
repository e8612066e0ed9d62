"""Counting many thresholds in few operators: a binary search instead of a comparison for each.

Engines take time that grows faster than the number of operators to load a graph. A neuron of 255
levels has 255 comparisons and sums per timestep; a search has eight rounds.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lbq.export.onnx_graph import Graph

UNROLLED = 16
"""Thresholds up to which every one is compared: the search has about as many operators."""


class ThresholdSearch:
    """The thresholds of a neuron as a table that a binary search reads.

    Args:
        graph: where to.
        thresholds: ``[N, 1]`` or ``[N, C]``, never falling.
        shape: of one sample of the membrane at one instant.
        dtype: of the membrane.
    """

    def __init__(
        self, graph: Graph, thresholds: Tensor, *, shape: tuple[int, ...], dtype: type[np.generic]
    ) -> None:
        self._graph, self._dtype, self._num = graph, dtype, len(thresholds)
        self._bits = self._num.bit_length()
        # Row k holds what level k takes; whoever reaches a copy of the last one has reached it too.
        missing = 2**self._bits - 1 - self._num
        rows = [thresholds[:1], thresholds, thresholds[-1:].expand(missing, -1)]
        self._table = torch.cat(rows)  # [2**bits, C]
        self._channels = self._table.shape[1]
        self._shape = (1, -1, *[1] * (len(shape) - 1)) if self._channels > 1 else ()

    def count(self, membrane: str, reaches: Callable[[str, str], str]) -> str:
        """Return the number of thresholds that the membrane has reached, as int32.

        Args:
            membrane: name of the value.
            reaches: writes the comparison of the membrane with a threshold.
        """
        graph, level = self._graph, None
        for bit in reversed(range(self._bits)):
            reached = graph.cast(reaches(membrane, self._threshold(level, 2**bit)), np.int32)
            gained = graph.op("Mul", reached, graph.constant(2**bit, np.int32))
            level = gained if level is None else graph.op("Add", level, gained)
        assert level is not None
        if self._num == 2**self._bits - 1:
            return level
        return graph.op("Min", level, graph.constant(self._num, np.int32))

    def _threshold(self, level: str | None, more: int) -> str:
        """Return what the level that was found so far and ``more`` take, per position."""
        graph = self._graph
        if level is None:
            return graph.constant(self._table[more].reshape(self._shape), self._dtype)
        flat = graph.constant(self._table.flatten(), self._dtype)
        row = level
        if self._channels > 1:
            row = graph.op("Mul", level, graph.constant(self._channels, np.int32))
        offset = more * self._channels + torch.arange(self._channels)
        index = graph.op("Add", row, graph.constant(offset.reshape(self._shape), np.int32))
        return graph.op("Gather", flat, index, axis=0)
