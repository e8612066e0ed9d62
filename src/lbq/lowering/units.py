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
from lbq.graph.operators import PIXEL_MAX, Operator, Synapse
from lbq.graph.operators.rounding import LEAST_UNIT

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
        self._units = np.full(len(self._parents), LEAST_UNIT)
        limits = self._units.copy()
        for path, node in nodes.items():
            self._raise(limits, path, node.least_unit())
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
        return np.array([self._root(channel) for channel in self._channels_of(path)], int)

    def _channels_of(self, path: str) -> np.ndarray:
        """Return the channels of the currents that a node gives, or else reads; none of levels."""
        none = np.array([], int)
        return self._channels.get(path, self._channels.get(self._inputs[path], none))

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

    def of(self, path: str) -> Tensor:
        """Return the units of a node's output currents, or else of its input; levels have 1.

        The shape is ``[C]``, or ``[1]`` if all channels have the same unit.
        """
        units = torch.from_numpy(self._units[self._roots(path)])
        if not len(units):
            return torch.ones(1, dtype=torch.float64)
        return units[:1] if bool((units == units[0]).all()) else units

    def _join(self, path: str, node: Operator, inputs: tuple[str, ...]) -> None:
        """Number the channels of a node's currents; join channels that need the same unit."""
        value = self._values[path]
        entering = [self._channels[name] for name in inputs if name in self._channels]
        if node.has_own_units:
            first = len(self._parents)
            self._parents += range(first, first + value.shape[0])
            self._channels[path] = np.arange(first, first + value.shape[0])
        elif value.max_level is None and len(entering) == len(inputs):  # else levels, or the input
            made = node.channels(entering, [self._values[name] for name in inputs])
            for together in made:
                self._merge(together)
            self._channels[path] = np.broadcast_to(made[:, 0], value.shape[:1])

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
