"""Neurons and what arrives at them as int8 convolutions, for networks of a single timestep.

Without a second timestep there is no membrane to keep: a level is the current divided by the step,
rounded down and saturated, which is what a requantising int8 convolution does. Engines recognise
it between QuantizeLinear and DequantizeLinear. Rounding down is rounding to nearest with half a
step less; that half must be an integer in the unit of the accumulator, so in some channels a
current within one unit of a threshold gets the neighbouring level. Such channels are counted.
Beside a shortcut the current keeps all its bits, unless the caller takes a loss for speed.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.nodes import EXACT_FLOAT32, IntegerNeuron, Synapse
from lbq.errors import ParameterError
from lbq.export.onnx_graph import Graph
from lbq.export.onnx_joint import WEIGHT_MAX, FusionGroup, find_joints
from lbq.export.onnx_lattice import QuantGrid, fit_quant_grid
from lbq.export.onnx_real import convolution

_BYTE_MAX = 255
_FLOAT32_ROOM = 1e-6
"""Share by which a scale may be off when an engine multiplies by it in float32."""
_MOST_MOVED = 1 / 16
"""Share of a step by which a threshold may move; else a neuron is written with all its bits."""
_END = 2**31 - 1
"""Behind the last position of any axis."""


class AffineFit(NamedTuple):
    """Thresholds as a straight line: ``level = round(scale * (current + offset))``, per channel."""

    scale: np.ndarray
    offset: np.ndarray
    is_exact: np.ndarray
    """Whether every integer current gets its own level."""
    error: float
    """The largest distance of a threshold from its place, in steps, unless one current fits in."""


class Int8FusionGroups:
    """Writes neurons and what arrives at them as int8 convolutions.

    Args:
        graph: where to.
        network: of integers, with one timestep.
        is_lossy: whether sums with a shortcut may be rounded to bytes too.
    """

    def __init__(self, graph: Graph, network: LoweredNetwork, *, is_lossy: bool) -> None:
        if network.timesteps != 1 or not network.is_integer:
            raise ParameterError(
                f"int8 styles take an integer network of one timestep: beyond, membranes need "
                f'more than 8 bits. This one has {network.timesteps}; use style "fast"'
            )
        self._graph = graph
        self._bytes: dict[str, str] = {}
        self.num_inexact_channels = 0
        self._fits: dict[str, AffineFit | QuantGrid] = {}
        self._fusion_groups = find_joints(network)
        for path, group in list(self._fusion_groups.items()):
            fit = _fit(group, is_lossy=is_lossy)
            if fit is None or fit.error > _MOST_MOVED:
                del self._fusion_groups[path]
            else:
                self._fits[path] = fit
        self.nodes = {node for group in self._fusion_groups.values() for node in group.nodes}
        """Paths of the nodes that are written with their neurons only."""

    def __contains__(self, path: str) -> bool:
        return path in self._fusion_groups

    def write(self, path: str, read: Callable[[str], str]) -> str:
        """Return a neuron's levels as floats that engines know to be bytes.

        Args:
            path: of the neuron.
            read: gives the value at a path, integers as floats.
        """
        graph, group = self._graph, self._fusion_groups[path]
        parts = [
            self._strided(self._byte(read(name)), stride)
            for name, stride in zip(group.reads, group.strides, strict=True)
        ]
        inputs = parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=1)
        fit = self._fits[path]
        self.num_inexact_channels += int((~fit.is_exact).sum())
        if isinstance(fit, QuantGrid):
            beside = self._byte(read(group.shortcut_read))
            current = self._residual(group, fit, inputs, beside)
        else:
            current = self._convolve(group, inputs, fit.scale, fit.offset)
        level = graph.op("QuantizeLinear", current, *self._unit())
        if group.neuron.max_level < _BYTE_MAX:
            limits = (graph.constant(limit, np.uint8) for limit in (0, group.neuron.max_level))
            level = graph.op("Clip", level, *limits)
        # OpenVINO moves scales through float arithmetic that reads bytes, and rounds; not past Abs.
        made = graph.op("Abs", graph.op("DequantizeLinear", level, *self._unit()))
        self._bytes[made] = level
        return made

    def _residual(self, group: FusionGroup, grid: QuantGrid, inputs: str, beside: str) -> str:
        """Return convolution and shortcut in steps, less half a step; the first in bytes."""
        graph = self._graph
        point = self._unit(grid.unit, grid.zero)
        current = self._convolve(group, inputs, grid.scale * grid.unit, grid.offset)
        points = graph.op("QuantizeLinear", current, *point)
        return graph.op(
            "Add",
            graph.op("DequantizeLinear", points, *point),
            graph.op("DequantizeLinear", beside, *self._unit(grid.unit * grid.weight)),
        )

    def _convolve(
        self, group: FusionGroup, inputs: str, scale: np.ndarray, offset: np.ndarray
    ) -> str:
        """Return the current, all biases and the offset added, in the unit of the scale."""
        graph, synapse = self._graph, group.synapse
        gain = _gain(synapse, group.neuron)
        bias = offset
        for node in (synapse, group.shortcut):
            if node is not None and node.bias is not None:
                bias = bias + node.bias.numpy() * gain
        channels = len(synapse.weight)
        stored_scale = graph.constant(np.broadcast_to(scale, channels), np.float32)
        stored_bias = graph.constant(np.broadcast_to(bias, channels), np.int32)
        weight = graph.constant(synapse.weight * gain, np.int8)
        return graph.op(
            "Conv",
            graph.op("DequantizeLinear", inputs, *self._unit()),
            graph.op("DequantizeLinear", weight, stored_scale, axis=0),
            graph.op("DequantizeLinear", stored_bias, stored_scale, axis=0),
            **convolution(synapse),
        )

    def current(self, synapse: Synapse, value: str) -> str:
        """Return the current of a convolution as floats that hold integers.

        OpenVINO convolves bytes here and hands on the whole sum. ONNX Runtime has no such operator;
        it folds the weights and convolves floats. A DequantizeLinear of weights it would not fold.
        """
        graph = self._graph
        ones = graph.constant(np.ones((len(synapse.weight), 1, 1, 1)), np.float32)
        weight = graph.cast(graph.constant(synapse.weight, np.int8), np.float32)
        arguments = [
            graph.op("DequantizeLinear", self._byte(value), *self._unit()),
            graph.op("Mul", weight, ones),
        ]
        if synapse.bias is not None:
            arguments.append(graph.constant(synapse.bias, np.float32))
        return graph.op("Conv", *arguments, **convolution(synapse))

    def _byte(self, value: str) -> str:
        """Return integer-valued floats as bytes, made once."""
        if value not in self._bytes:
            self._bytes[value] = self._graph.op("QuantizeLinear", value, *self._unit())
        return self._bytes[value]

    def _strided(self, value: str, stride: tuple[int, ...]) -> str:
        if all(step == 1 for step in stride):
            return value
        starts, ends, axes, steps = (
            self._graph.constant(np.array(numbers), np.int64)
            for numbers in ([0, 0], [_END, _END], [2, 3], list(stride))
        )
        return self._graph.op("Slice", value, starts, ends, axes, steps)

    def _unit(self, scale: float = 1, zero: int = 0) -> tuple[str, str]:
        return self._graph.constant(scale, np.float32), self._graph.constant(zero, np.uint8)


def _fit(group: FusionGroup, *, is_lossy: bool) -> AffineFit | QuantGrid | None:
    """Fit a neuron's thresholds; None where a shortcut needs all bits of a byte or more."""
    thresholds, shortcut = group.neuron.thresholds, group.shortcut
    gain = _gain(group.synapse, group.neuron)
    if shortcut is None:
        return fit_affine(thresholds, gain=gain)
    assert shortcut.max_input is not None
    if not is_lossy:
        return None
    return fit_quant_grid(thresholds, shortcut.weight, max_input=shortcut.max_input, gain=gain)


def _gain(synapse: Synapse, neuron: IntegerNeuron) -> int:
    """Return by how much weights can grow, so that half a step is closer to an integer."""
    assert synapse.max_input is not None
    largest = int(synapse.weight.long().abs().flatten(1).sum(1).max()) * synapse.max_input
    largest += 0 if synapse.bias is None else int(synapse.bias.long().abs().max())
    room = (EXACT_FLOAT32 - 1) // max(largest, int(neuron.thresholds.max()))
    return max(1, min(WEIGHT_MAX // max(int(synapse.weight.int().abs().max()), 1), room))


def fit_affine(thresholds: Tensor, *, gain: int) -> AffineFit:
    """Find the line that rounds to the level of as many integer currents as can be.

    Rung k must lie between the largest current that rounds to k - 1 and the smallest that rounds to
    k. Among a few offsets the one that leaves the scale most room is taken, per channel.

    Args:
        thresholds: thresholds ``[N, C]``, integers.
        gain: by how much weights were multiplied, so that currents come in multiples of it.
    """
    reached = (
        thresholds.to(torch.float64).numpy() * gain
    )  # [N, C], the smallest current of each level
    missed = reached - gain
    levels = np.arange(1, len(reached) + 1).reshape(-1, 1)
    start = np.round(_straight_offset(reached - gain / 2, levels - 0.5))
    scale, offset = np.ones_like(start), start
    most = np.full_like(start, -np.inf)
    for shift in range(-gain - 1, gain + 2):
        shifted = start + shift
        low = ((levels - 0.5) / np.maximum(reached + shifted, 0.5)).max(0)
        high = ((levels - 0.5) / np.maximum(missed + shifted, 0.25)).min(0)
        is_better = (high - low) / low > most
        scale = np.where(is_better, (low + high) / 2, scale)
        offset = np.where(is_better, shifted, offset)
        most = np.maximum(most, (high - low) / low)
    stored = scale.astype(np.float32)
    above, below = (
        np.rint((side + offset).astype(np.float32) * stored) for side in (reached, missed)
    )
    is_exact = ((above >= levels) & (below < levels)).all(0) & (most > _FLOAT32_ROOM)
    distance = np.abs((levels - 0.5) / scale - offset - (reached - gain / 2)) - gain / 2
    is_moved = distance > gain  # by more than the one current beside it
    error = np.where(is_moved, distance, 0) / np.maximum(reached[-1] / len(reached), 1)
    return AffineFit(stored, offset, is_exact, float(error.max()))


def _straight_offset(currents: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return where ``points = slope * (currents + offset)`` by least squares, per channel."""
    if len(points) == 1:
        return -currents[0] / 2
    centred, wanted = currents - currents.mean(0), points - points.mean()
    slope = (centred * wanted).sum(0) / np.maximum((centred**2).sum(0), 1)
    return points.mean() / np.maximum(slope, 1e-12) - currents.mean(0)
