"""The units of an integer network's currents: the real value of the integer 1, per channel.

Currents that are added need the same unit, so the channels that meet in a sum, an output or a
rearrangement are joined. Joined channels get the largest unit that one of their synapses needs. If
this leaves another synapse too few bits, as where a transformer adds many branches, the unit is
divided by a power of two and the synapses with larger weights get more bits.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lbq.graph.graph import LoweredNetwork
from lbq.graph.operators import (
    PIXEL_MAX,
    LevelNeuron,
    Move,
    Offset,
    Operator,
    Shortcut,
    Synapse,
    Weighted,
)

SHORTCUT_MAX = 2**15 - 1
"""Largest weight of a shortcut, which has one weight per channel."""
_MAX_UNITS = 2**20
"""Largest threshold or constant in units."""
_MAX_CURRENT = 2**30
"""Largest current of one shortcut, so that a few can be added."""
_LEAST = 1e-30
_MAX_COARSE = 4.0
"""Largest ratio of a synapse's unit to its best one, in the median channel: a loss of two bits."""


class Units:
    """The unit of every channel of every node whose output are currents.

    Args:
        network: a lowered network of real numbers.
        nodes: its nodes by path, as they will be rounded.
        best: for every synapse, the unit per output channel that suits its weights.
        max_extra_bits: largest number of additional bits for a synapse.
    """

    def __init__(
        self,
        network: LoweredNetwork,
        nodes: dict[str, Operator],
        best: dict[str, Tensor],
        *,
        max_extra_bits: int = 0,
    ) -> None:
        self._values = network.values()
        self._parents: list[int] = []
        self._channels: dict[str, np.ndarray] = {}
        for path, _, inputs in network.nodes:
            self._join(path, nodes[path], inputs)
        outputs = [self._channels[path] for path in network.outputs]
        if outputs:
            self._merge(np.concatenate(outputs))
        self._inputs = {path: inputs[0] for path, _, inputs in network.nodes}
        self._units = np.full(len(self._parents), _LEAST)
        limits = self._units.copy()
        for path, first in self._inputs.items():
            given = path if path in self._channels else first
            if given in self._channels:  # else an operator on levels
                self._raise(limits, given, _smallest_unit(nodes[path]))
        np.maximum(self._units, limits, out=self._units)
        for path, unit in best.items():
            self._raise(self._units, path, unit)
        self.extra_bits = dict.fromkeys(best, 0)
        """Additional bits that the weights of a synapse need."""
        self._reads_bytes = {
            path
            for path, node in nodes.items()
            if isinstance(node, Synapse) and (node.max_input or 0) >= PIXEL_MAX
        }
        for together in self._added(best):
            self._refine({path: best[path] for path in together}, limits, max_extra_bits)

    def _raise(self, units: np.ndarray, path: str, least: Tensor) -> None:
        """Raise the units of a node's channels to at least these."""
        roots = self._roots(path)
        np.maximum.at(units, roots, np.broadcast_to(least.numpy(), roots.shape))

    def _roots(self, path: str) -> np.ndarray:
        return np.array([self._root(channel) for channel in self._channels[path]])

    def _added(self, paths: Iterable[str]) -> list[list[str]]:
        """Group the synapses whose channels are joined."""
        groups: list[tuple[set[int], list[str]]] = []
        for path in paths:
            roots, together = set(self._roots(path).tolist()), [path]
            for group in [group for group in groups if group[0] & roots]:
                groups.remove(group)
                roots, together = roots | group[0], group[1] + together
            groups.append((roots, together))
        return [together for _, together in groups if len(together) > 1]

    def _refine(self, best: dict[str, Tensor], limits: np.ndarray, max_extra_bits: int) -> None:
        """Divide the unit of added synapses by a power of two, if one keeps too few bits."""
        coarse = {
            path: float(np.median(self._units[self._roots(path)] / unit.numpy()))
            for path, unit in best.items()
        }
        bits = min(max_extra_bits, math.ceil(math.log2(max(coarse.values()) / _MAX_COARSE)))
        for path in self._reads_bytes & best.keys():  # bytes times wide weights would be slow
            bits = min(bits, math.floor(math.log2(coarse[path])))
        if bits <= 0:
            return
        roots = np.unique(np.concatenate([self._roots(path) for path in best]))
        self._units[roots] = np.maximum(self._units[roots] / 2**bits, limits[roots])
        for path, unit in best.items():
            if coarse[path] >= 2**bits:
                self._raise(self._units, path, unit)
            else:
                self.extra_bits[path] = bits

    def given_by(self, path: str) -> Tensor:
        """Return the units of a node's output currents, ``[C]``; ``[1]`` if all are equal."""
        units = torch.tensor([self._units[self._root(c)] for c in self._channels[path]])
        units = units.to(torch.float64)
        return units[:1] if bool((units == units[0]).all()) else units

    def read_by(self, path: str) -> Tensor:
        """Return the units of a node's input currents, as :meth:`given_by`."""
        return self.given_by(self._inputs[path])

    def _join(self, path: str, node: Operator, inputs: tuple[str, ...]) -> None:
        """Number the channels of a node's currents; join channels that need the same unit."""
        if isinstance(node, Weighted):
            first, count = len(self._parents), self._values[path].shape[0]
            self._parents += range(first, first + count)
            self._channels[path] = np.arange(first, first + count)
            return
        entering = [self._channels[name] for name in inputs if name in self._channels]
        if isinstance(node, LevelNeuron) or len(entering) != len(inputs):
            return  # it gives levels
        if isinstance(node, Move):
            moved = node.channels(entering, [self._values[name] for name in inputs])
            if moved is None:
                everything = np.concatenate(entering)
                self._merge(everything)
                moved = np.broadcast_to(everything[:1], self._values[path].shape[:1])
            self._channels[path] = moved
            return
        for together in zip(*entering, strict=True):
            self._merge(np.array(together))
        self._channels[path] = entering[0]

    def _merge(self, channels: np.ndarray) -> None:
        roots = {self._root(channel) for channel in channels}
        first = min(roots)
        for root in roots:
            self._parents[root] = first

    def _root(self, channel: int | np.integer) -> int:
        while self._parents[channel] != channel:
            self._parents[channel] = self._parents[self._parents[channel]]
            channel = self._parents[channel]
        return int(channel)


def _smallest_unit(node: Operator) -> Tensor:
    """Return the smallest unit in which shortcuts, constants and thresholds fit their integers."""
    least = torch.full((1,), _LEAST, dtype=torch.float64)
    if isinstance(node, Shortcut):
        assert node.max_input is not None  # checked
        largest = min(SHORTCUT_MAX, max(1, _MAX_CURRENT // node.max_input))
        least = torch.maximum(least, node.weight.double().abs() / largest)
    if isinstance(node, Weighted | Offset) and node.bias is not None:
        rows = node.bias.double().abs().reshape(len(node.bias), -1)
        least = torch.maximum(least, rows.amax(1) / _MAX_UNITS)
    if isinstance(node, LevelNeuron):
        least = torch.maximum(least, node.thresholds[0].double() / _MAX_UNITS)
    return least
