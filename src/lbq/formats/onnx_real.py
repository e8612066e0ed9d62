"""Nodes as ONNX operators in float32: of real networks, and of integer ones whose bound allows it.

Every integer below 2**24 is exact in float32, so an integer network whose proof stays below may
use the engines' float convolutions, which are their best ones, and still give the same bits.
"""

import numpy as np
from torch import Tensor

from lbq.deploy.operators import (
    EXACT_FLOAT32,
    IntegerNeuron,
    LevelNeuron,
    Pool,
    Readout,
    Shortcut,
    Synapse,
)
from lbq.errors import LoweringError
from lbq.formats.onnx_graph import UNROLLED, Graph, ThresholdSearch, TimedValue, stack

PAIR_MAX = 2**15 - 1
"""Where older processors saturate the sum of two products of a byte and a signed byte."""
_VALUE = np.float32


class RealNodes:
    """Writes nodes in float32.

    Args:
        graph: where to.
        is_integer: whether all numbers are integers, to be kept exact.
    """

    def __init__(self, graph: Graph, *, is_integer: bool) -> None:
        self.graph, self.is_integer = graph, is_integer

    def enter(self, value: str) -> str:
        """Take what enters the network."""
        return self.graph.cast(value, np.float32) if self.is_integer else value

    def synapse(self, node: Synapse, inputs: TimedValue) -> str:
        """Convolve or multiply, all instants in one batch."""
        graph, value = self.graph, inputs.batch(self.graph)
        weight = node.weight
        if node.is_linear:
            value = value if len(inputs.shape) == 1 else graph.op("Flatten", value, axis=1)
            arguments = [value, self._constant(weight.T)]
            if node.bias is None:
                return graph.op("MatMul", *arguments)
            return graph.op("Gemm", *arguments, self._constant(node.bias))
        arguments = [value, self._constant(weight)]
        if node.bias is None:
            return graph.op("Conv", *arguments, **convolution(node))
        bias = self._constant(node.bias)
        if node.bias.dim() == 3:
            return graph.op("Add", graph.op("Conv", *arguments, **convolution(node)), bias)
        return graph.op("Conv", *arguments, bias, **convolution(node))

    def shortcut(self, node: Shortcut, inputs: TimedValue) -> str:
        """Multiply every channel."""
        weight = self._constant(per_channel(node.weight, inputs.shape))
        product = self.graph.op("Mul", inputs.batch(self.graph), weight)
        if node.bias is None:
            return product
        return self.graph.op("Add", product, self._constant(per_channel(node.bias, inputs.shape)))

    def pool(self, node: Pool, inputs: TimedValue) -> str:
        """Take the largest or the sum of every window."""
        graph, value = self.graph, inputs.batch(self.graph)
        if node.kind == "max":
            return graph.op("MaxPool", value, **window(node))
        if covers_everything(node, inputs.shape):
            axes = graph.constant(np.array([2, 3]), np.int64)
            return graph.op("ReduceSum", value, axes, keepdims=1)
        channels = inputs.shape[0]
        ones = graph.constant(np.ones((channels, 1, *node.kernel)), _VALUE)
        return graph.op("Conv", value, ones, group=channels, **window(node))

    def neuron(self, node: LevelNeuron, currents: TimedValue, reach: tuple[int, int]) -> list[str]:
        """Unroll a neuron whose membrane stays within ``reach``; return its levels by instant."""
        if self.is_integer and currents.timesteps > 1:  # what a reset can remove
            if node.reset == "level":
                check_exact(reach[0] - reach[1], reach[1] - reach[0])
            elif node.reset == "event":
                check_exact(0, int(node.reset_amount.max()))
        return _Unrolled(self.graph, node, currents).levels

    def readout(self, node: Readout, currents: TimedValue) -> str:
        """Answer with the mean, the sum, or all instants."""
        instants = currents.by_instant(self.graph)
        is_stacked = node.over_time == "none"
        total = stack(self.graph, instants) if is_stacked else self.graph.chain("Add", instants)
        if node.over_time == "mean":
            total = self.graph.op("Div", total, self._constant(len(instants)))
        return self.graph.cast(total, np.int32) if self.is_integer else total

    def _constant(self, values: Tensor | int) -> str:
        return self.graph.constant(values, _VALUE)


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
        self._spike = ""  # whether the last instant emitted, or how much, where a reset needs it
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
        decayed = graph.op("Mul", carry, graph.constant(node.decay.reshape(()), _VALUE))
        is_rounded = isinstance(node, IntegerNeuron) and node.shift > 0
        return graph.op("Floor", decayed) if is_rounded else decayed

    def _count(self, membrane: str) -> tuple[str, str]:
        """Return the level, and whether there is one."""
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
        """Give every threshold a membrane of its own, which forgets when it is reached."""
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
            f"its integers can reach {low}..{high}, and float32 is exact below 2**24 only; "
            f'export with style="exact", or use fewer weight bits'
        )


def per_channel(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Shape one value per channel to broadcast against ``[B, *shape]``."""
    if values.numel() == 1:
        return values.reshape(())
    return values.reshape(1, -1, *[1] * (len(shape) - 1))


def convolution(node: Synapse) -> dict[str, object]:
    """Return the attributes of a convolution."""
    return {
        "strides": list(node.stride),
        "pads": [*node.padding, *node.padding],
        "dilations": list(node.dilation),
        "group": node.groups,
    }


def window(node: Pool) -> dict[str, object]:
    """Return the attributes of a pool."""
    return {
        "kernel_shape": list(node.kernel),
        "strides": list(node.stride),
        "pads": [*node.padding, *node.padding],
    }


def covers_everything(node: Pool, shape: tuple[int, ...]) -> bool:
    """Tell whether one window covers the whole space."""
    return tuple(node.kernel) == tuple(shape[1:]) and not any(node.padding)
