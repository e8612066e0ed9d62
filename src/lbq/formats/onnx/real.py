"""Nodes as ONNX operators in float32, for real networks and for small integers.

Every integer below 2**24 is exact in float32. An integer network with bounds below that can use the
engines' float convolutions, their fastest ones, and still computes the same integers.
"""

import numpy as np
from torch import Tensor

from lbq.errors import LoweringError
from lbq.formats.onnx.graph import UNROLLED, Graph, ThresholdSearch, TimedValue
from lbq.formats.onnx.nodes import Nodes, convolution, is_global, per_channel, window
from lbq.graph.operators import (
    EXACT_FLOAT32,
    IntegerNeuron,
    LevelNeuron,
    Matmul,
    Pool,
    Readout,
    Synapse,
)

_VALUE = np.float32


class RealNodes(Nodes):
    """Writes nodes in float32.

    Args:
        graph: receives the operators.
        is_integer: whether all numbers are integers that must stay exact.
        is_int8: whether the graph has int8 convolutions.
    """

    def __init__(self, graph: Graph, *, is_integer: bool, is_int8: bool = False) -> None:
        super().__init__(graph, _VALUE)
        self.is_integer, self._is_int8 = is_integer, is_int8

    def enter(self, value: str) -> str:
        """Return the network's input as floats."""
        return self.graph.cast(value, np.float32) if self.is_integer else value

    def scaled(self, name: str, weight: str) -> str:
        """Multiply by a constant.

        In a graph with int8 convolutions OpenVINO takes the constant for the scale of bytes and
        moves it past sums, which rounds. Round stops it.
        """
        product = super().scaled(name, weight)
        return self.graph.op("Round", product) if self._is_int8 else product

    def synapse(self, node: Synapse, inputs: list[TimedValue], made: TimedValue) -> str:
        """Convolve or multiply, all timesteps in one batch."""
        graph, value = self.graph, inputs[0].batch(self.graph)
        if node.is_linear:
            value = value if len(inputs[0].shape) == 1 else graph.op("Flatten", value, axis=1)
            arguments = [value, self.constant(node.weight.T)]
            if node.bias is None:
                return graph.op("MatMul", *arguments)
            return graph.op("Gemm", *arguments, self.constant(node.bias))
        arguments = [value, self.constant(node.weight)]
        if node.bias is None or node.bias.dim() > 1:
            product = graph.op("Conv", *arguments, **convolution(node))
            return self.with_bias(product, node, made)
        return graph.op("Conv", *arguments, self.constant(node.bias), **convolution(node))

    def matmul(self, node: Matmul, inputs: list[TimedValue], made: TimedValue) -> str:
        """Multiply matrices of levels."""
        return self.graph.op("MatMul", *(value.batch(self.graph) for value in inputs))

    def pool(self, node: Pool, inputs: list[TimedValue], made: TimedValue) -> str:
        """Compute the maximum or the sum of every window."""
        graph, value = self.graph, inputs[0].batch(self.graph)
        if node.kind == "max":
            return graph.op("MaxPool", value, **window(node))
        if is_global(node, inputs[0]):
            return self.sum_over_space(inputs[0])
        channels = made.shape[0]
        ones = graph.constant(np.ones((channels, 1, *node.kernel)), _VALUE)
        return graph.op("Conv", value, ones, group=channels, **window(node))

    def neuron(self, node: LevelNeuron, currents: TimedValue, reach: tuple[int, int]) -> list[str]:
        """Unroll a neuron whose membrane stays within ``reach``; return its levels by timestep."""
        if self.is_integer and currents.timesteps > 1:  # the amounts that a reset can subtract
            if node.reset == "level":
                check_exact(reach[0] - reach[1], reach[1] - reach[0])
            elif node.reset == "event":
                check_exact(0, int(node.reset_amount.max()))
        return _Unrolled(self.graph, node, currents).levels

    def readout(self, node: Readout, inputs: list[TimedValue], made: TimedValue) -> str:
        """Return the outputs; integers for an integer network."""
        total = super().readout(node, inputs, made)
        return self.graph.cast(total, np.int32) if self.is_integer else total


class _Unrolled:
    """A neuron, timestep by timestep, in float32."""

    def __init__(self, graph: Graph, node: LevelNeuron, currents: TimedValue) -> None:
        self._graph, self._node = graph, node
        self._thresholds = [
            graph.constant(per_channel(threshold, currents.shape), _VALUE)
            for threshold in node.thresholds.unbind(0)
        ]
        self._search = None
        if len(node.thresholds) > UNROLLED and not node.per_threshold_state:
            self._search = ThresholdSearch(
                graph, node.thresholds, shape=currents.shape, dtype=_VALUE
            )
        self._reset_amount = graph.constant(per_channel(node.reset_amount, currents.shape), _VALUE)
        self._zero = graph.constant(0, _VALUE)
        self._spike = ""  # the last level, or whether there was one, where a reset needs it
        instants = currents.by_instant(graph)
        if node.mixture is not None:
            instants = self._mixed(instants, node.mixture)
        run = self._split if node.per_threshold_state else self._whole
        self.levels = run(instants)

    def _whole(self, currents: list[str]) -> list[str]:
        levels: list[str] = []
        carry: str | None = None
        for current in currents:
            membrane = current if carry is None else self._integrated(carry, current)
            level, first = self._count(membrane)
            levels.append(level)
            if len(levels) < len(currents):
                carry = self._after(membrane, first)
        return levels

    def _integrated(self, carry: str, current: str) -> str:
        membrane = self._graph.op("Add", self._decayed(carry), current)
        if not self._node.resets_after_decay:
            return membrane
        reset_amount = self._graph.op("Mul", self._reset_amount, self._spike)
        return self._graph.op("Sub", membrane, reset_amount)

    def _decayed(self, carry: str) -> str:
        node, graph = self._node, self._graph
        decayed = graph.op("Mul", carry, graph.constant(node.carry_share, _VALUE))
        is_rounded = isinstance(node, IntegerNeuron) and node.shift > 0
        return graph.op("Floor", decayed) if is_rounded else decayed

    def _count(self, membrane: str) -> tuple[str, str]:
        """Return the level, and whether it is not zero."""
        graph = self._graph
        size = graph.op("Abs", membrane) if self._node.is_signed else membrane
        first = graph.op("GreaterOrEqual", size, self._thresholds[0])
        level = self._spike = graph.cast(first, _VALUE)
        if self._search is not None:
            level = graph.cast(self._search.count(size, self._reaches), _VALUE)
        else:
            reached = [
                graph.op("GreaterOrEqual", size, threshold) for threshold in self._thresholds[1:]
            ]
            for more in reached:
                level = graph.op("Add", level, graph.cast(more, _VALUE))
        if self._node.is_signed:
            sign = graph.op("Sign", membrane)
            level, self._spike = graph.op("Mul", level, sign), graph.op("Mul", self._spike, sign)
        if self._node.reset == "level" or self._node.resets_after_decay:
            self._spike = level
        return level, first

    def _reaches(self, size: str, threshold: str) -> str:
        return self._graph.op("GreaterOrEqual", size, threshold)

    def _after(self, membrane: str, first: str) -> str:
        node, graph = self._node, self._graph
        if node.resets_after_decay or node.reset == "none":
            return membrane
        if node.reset == "zero":
            return graph.op("Where", first, self._zero, membrane)
        return graph.op("Sub", membrane, graph.op("Mul", self._reset_amount, self._spike))

    def _split(self, currents: list[str]) -> list[str]:
        """Give every threshold its own membrane, which is set to zero when it emits."""
        graph = self._graph
        carries: list[str | None] = [None] * len(self._thresholds)
        levels: list[str] = []
        for current in currents:
            spikes: list[str] = []
            for k, (threshold, carry) in enumerate(zip(self._thresholds, carries, strict=True)):
                membrane = current if carry is None else self._integrated(carry, current)
                reached = graph.op("GreaterOrEqual", membrane, threshold)
                spikes.append(graph.cast(reached, _VALUE))
                carries[k] = graph.op("Where", reached, self._zero, membrane)
            levels.append(graph.chain("Add", spikes))
        return levels

    def _mixed(self, currents: list[str], mixture: Tensor) -> list[str]:
        graph = self._graph
        mixed: list[str] = []
        for row in mixture.unbind(0):
            parts = [
                graph.op("Mul", current, graph.constant(share, _VALUE))
                for current, share in zip(currents, row.unbind(0), strict=True)
            ]
            mixed.append(graph.chain("Add", parts))
        return mixed


def check_exact(low: int, high: int) -> None:
    """Raise LoweringError for integers that float32 would round."""
    if max(-low, high) >= EXACT_FLOAT32:
        raise LoweringError(
            f"its integers can reach {low}..{high}, but float32 is exact only below 2**24; "
            f'export with style="exact", or use fewer weight bits'
        )
