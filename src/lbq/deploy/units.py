"""The units of an integer network's currents: the value of one integer, per channel.

Currents that are added need one unit, so channels that meet in a sum, an output or a rearrangement
are joined. The unit of joined channels is the largest that one of their weights asks for.
"""

import numpy as np
import torch
from torch import Tensor

from lbq.deploy.graph import LoweredNetwork
from lbq.deploy.operators import (
    LevelNeuron,
    Move,
    Offset,
    Operator,
    Shortcut,
    Synapse,
    Weighted,
)

SHORTCUT_MAX = 2**15 - 1
"""The largest weight of an identity shortcut, the only weight of its channel."""
_MAX_UNITS = 2**20
"""Largest threshold or constant in units."""
_MAX_CURRENT = 2**30
"""Largest current of one shortcut, so that a few can be added."""
_LEAST = 1e-30


class Units:
    """The unit of every channel of every node that gives currents.

    Args:
        network: a lowered network of real numbers.
        nodes: its nodes by path, as they will be rounded.
        best: for every synapse, the unit per output channel that suits its weights.
    """

    def __init__(
        self, network: LoweredNetwork, nodes: dict[str, Operator], best: dict[str, Tensor]
    ) -> None:
        self._values = network.values()
        self._parents: list[int] = []
        self._channels: dict[str, np.ndarray] = {}
        for ref in network.plan:
            self._join(ref.path, nodes[ref.path], ref.inputs)
        outputs = [self._channels[path] for path in network.outputs]
        if outputs:
            self._merge(np.concatenate(outputs))
        self._inputs = {ref.path: ref.inputs[0] for ref in network.plan}
        self._units = np.full(len(self._parents), _LEAST)
        for ref in network.plan:
            needed = _smallest_unit(nodes[ref.path])
            if isinstance(nodes[ref.path], Synapse):
                needed = torch.maximum(needed, best[ref.path])
            channels = self._channels.get(ref.path)
            if channels is None:  # a neuron, or an operator on levels
                channels = self._channels.get(ref.inputs[0])
            if channels is not None:
                roots = np.array([self._root(channel) for channel in channels])
                np.maximum.at(self._units, roots, np.broadcast_to(needed.numpy(), roots.shape))

    def given_by(self, path: str) -> Tensor:
        """Return the unit of the currents that a node gives, ``[C]``; ``[1]`` if all are equal."""
        units = torch.tensor([self._units[self._root(c)] for c in self._channels[path]])
        units = units.to(torch.float64)
        return units[:1] if bool((units == units[0]).all()) else units

    def read_by(self, path: str) -> Tensor:
        """Return the unit of the currents that a node reads, as :meth:`given_by`."""
        return self.given_by(self._inputs[path])

    def _join(self, path: str, node: Operator, inputs: tuple[str, ...]) -> None:
        """Give the channels of a node's currents their numbers; join those that need one unit."""
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

    def _root(self, channel: int) -> int:
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
