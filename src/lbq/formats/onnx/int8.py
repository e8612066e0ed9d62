"""Integer networks of one timestep as int8 convolutions for ONNX engines.

With one timestep there is no membrane to keep. A level is the current divided by the step, rounded
down and saturated, which a requantising int8 convolution computes. Engines recognise one between
QuantizeLinear and DequantizeLinear. Rounding down is rounding to nearest after subtracting half a
step. That half must be an integer in the unit of the accumulator. Where it is not, a current within
one unit of a threshold gets the neighbouring level; such channels are counted.

A fusion group is a neuron with the convolution whose only reader it is. After a merge it has both
branches. A 1 x 1 projection becomes additional inputs of the block's convolution, at the middle tap
of its window, so both sums share one accumulator and no bit is lost. A shortcut stays separate.

With a shortcut, the current is rounded before the sum to a grid of ``fine`` points per step. If the
shortcut's weight is a whole number of points, this loses nothing, because whole points can be added
before or after rounding down. Among the fractions ``weight / fine`` whose points fit a byte, the
one nearest to the real ratio is used.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lbq.errors import ParameterError
from lbq.formats.onnx.graph import Graph
from lbq.formats.onnx.integers import PAIR_MAX
from lbq.formats.onnx.nodes import convolution
from lbq.graph.graph import LoweredNetwork
from lbq.graph.operators import EXACT_FLOAT32, IntegerNeuron, Merge, Repeat, Shortcut, Synapse

WEIGHT_MAX = 127


@dataclass
class FusionGroup:
    """A neuron and the nodes before it, as one convolution.

    Args:
        neuron: the neuron at its end.
        nodes: paths of the nodes that it replaces, except the neuron.
        synapse: the convolution; it reads all inputs concatenated, as channels.
        reads: paths of its inputs.
        strides: stride for reading each input.
        shortcut: the shortcut that is added to its current, if any.
        shortcut_read: path of the shortcut's input.
    """

    neuron: IntegerNeuron
    nodes: tuple[str, ...]
    synapse: Synapse
    reads: tuple[str, ...]
    strides: tuple[tuple[int, ...], ...]
    shortcut: Shortcut | None = None
    shortcut_read: str = ""


def find_fusion_groups(network: LoweredNetwork) -> dict[str, FusionGroup]:
    """Return the fusion groups of a network of one timestep by the paths of their neurons."""
    readers = Counter(name for node in network.nodes for name in node.inputs)
    inputs = {node.path: node.inputs for node in network.nodes}
    groups: dict[str, FusionGroup] = {}
    for path, neuron in network.neurons():
        assert isinstance(neuron, IntegerNeuron)
        nodes = _before(network, inputs, path)
        if nodes is None or any(readers[node] > 1 for node in nodes):
            continue
        group = _fusion_group(network, inputs, neuron, nodes)
        if group is not None and int(neuron.thresholds.max()) < EXACT_FLOAT32:
            groups[path] = group
    return groups


def _before(
    network: LoweredNetwork, inputs: dict[str, tuple[str, ...]], path: str
) -> tuple[str, ...] | None:
    """Return the nodes between a neuron and levels; None if a current comes from elsewhere."""
    found: list[str] = []
    for source in inputs[path]:
        node = network.operators.get(source)
        if isinstance(node, Synapse | Shortcut):
            found.append(source)
            continue
        before = _before(network, inputs, source) if isinstance(node, Repeat | Merge) else None
        if before is None:
            return None
        found += [source, *before]
    return tuple(found)


def _fusion_group(
    network: LoweredNetwork,
    inputs: dict[str, tuple[str, ...]],
    neuron: IntegerNeuron,
    nodes: tuple[str, ...],
) -> FusionGroup | None:
    found = {path: network.operators[path] for path in nodes}
    synapses = {path: node for path, node in found.items() if isinstance(node, Synapse)}
    shortcuts = {path: node for path, node in found.items() if isinstance(node, Shortcut)}
    if not synapses or not all(fits_int8(node) for node in synapses.values()):
        return None
    # The widest window comes first; the other must fit its middle.
    (first, synapse), *others = sorted(
        synapses.items(), key=lambda item: -item[1].weight[0, 0].numel()
    )
    if len(others) + len(shortcuts) > 1:
        return None
    reads: list[str] = [inputs[first][0]]
    strides: list[tuple[int, ...]] = [(1, 1)]
    for path, other in others:
        if not _is_centred(synapse) or not _is_projection(other):
            return None
        synapse = _joined(synapse, other)
        reads.append(inputs[path][0])
        strides.append(other.stride)
    group = FusionGroup(neuron, nodes, synapse, tuple(reads), tuple(strides))
    for path, shortcut in shortcuts.items():
        group.shortcut, group.shortcut_read = shortcut, inputs[path][0]
    return group


def _joined(synapse: Synapse, projection: Synapse) -> Synapse:
    height, width = synapse.weight.shape[2:]
    shape = (*projection.weight.shape[:2], height, width)
    weight = torch.zeros(shape, dtype=torch.int8)
    weight[:, :, height // 2, width // 2] = projection.weight[:, :, 0, 0]
    biases = [node.bias for node in (synapse, projection) if node.bias is not None]
    assert synapse.max_input is not None
    assert projection.max_input is not None
    return replace(
        synapse,
        weight=torch.cat([synapse.weight, weight], dim=1),
        bias=torch.stack(biases).sum(0, dtype=torch.int32) if biases else None,
        max_input=max(synapse.max_input, projection.max_input),
    )


def _is_centred(node: Synapse) -> bool:
    """Return whether the middle tap of the window reads the position of the output."""
    middles = zip(node.weight.shape[2:], node.padding, node.dilation, strict=True)
    is_same = all(size % 2 and 2 * pad == dilation * (size - 1) for size, pad, dilation in middles)
    return is_same and tuple(node.stride) == (1, 1) and node.groups == 1


def _is_projection(node: Synapse) -> bool:
    return node.weight.shape[2:] == (1, 1) and not any(node.padding) and node.groups == 1


def fits_int8(node: Synapse) -> bool:
    """Return whether an int8 convolution can compute a synapse without saturation."""
    if node.weight.dim() != 4 or node.weight.dtype != torch.int8 or node.max_input is None:
        return False
    is_map = node.bias is not None and node.bias.dim() != 1
    return not is_map and 2 * node.max_input * WEIGHT_MAX <= PAIR_MAX


_BYTE_MAX = 255


class QuantGrid(NamedTuple):
    """``point = round(scale * (current + offset))``; a level is the rounded mean of points.

    ``level = round(unit * (point + weight * shortcut level))``, and a byte is point + zero.
    """

    scale: np.ndarray
    """Number of points per unit of current, ``[C]``."""
    offset: np.ndarray
    weight: int
    """Number of points per level of the shortcut."""
    unit: float
    """Number of steps per point."""
    zero: int
    is_exact: np.ndarray
    """Whether every current gets its exact level for every level of the shortcut, ``[C]``."""
    error: float
    """The largest distance of a threshold from its place, in steps."""


def fit_quant_grid(
    thresholds: Tensor, shortcut: Tensor, *, max_input: int, gain: int
) -> QuantGrid | None:
    """Find the grid that moves thresholds least; None if no grid fits a byte.

    Args:
        thresholds: thresholds ``[N, C]``, integers.
        shortcut: weights of the shortcut, ``[C]`` or ``[1]``, integers.
        max_input: the largest level of the shortcut.
        gain: factor by which the convolution's weights were multiplied.
    """
    reals = thresholds.to(torch.float64).numpy()  # [N, C]
    step = reals[-1] / len(reals)
    ratio = float(np.median(shortcut.numpy() / step))
    found: list[QuantGrid] = []
    for fine in range(1, _BYTE_MAX, 2):  # odd: no sum lies half way between two levels
        weight = round(fine * ratio)
        lowest = min(fine - weight * max_input - 1, fine // 2)
        if fine * len(reals) - lowest <= _BYTE_MAX:
            found.append(_fit_grid(reals, shortcut.numpy(), max_input, gain, fine, weight, lowest))
    return min(found, key=lambda grid: grid.error, default=None)


def _fit_grid(
    thresholds: np.ndarray,
    shortcut: np.ndarray,
    max_input: int,
    gain: int,
    fine: int,
    weight: int,
    lowest: int,
) -> QuantGrid:
    """Fit a line, per channel, to the smallest current of every level for every shortcut level."""
    half = fine // 2
    levels = np.arange(1, len(thresholds) + 1).reshape(-1, 1)
    inputs = np.arange(max_input + 1)
    points = (fine * levels - weight * inputs - half).reshape(-1, 1)  # [N * inputs, 1]
    reached = thresholds[:, None] - inputs.reshape(-1, 1) * shortcut  # [N, inputs, C]
    reached = gain * reached.reshape(len(points), -1)
    border = reached - gain / 2  # no current lies between reached and reached - gain
    wanted = points - 0.5
    slope = _slope(border - border.mean(0), wanted - wanted.mean(0))
    offset = np.round(wanted.mean() / slope - border.mean(0))
    slope = _slope(border + offset, wanted)
    stored = slope.astype(np.float32)
    above, below = (
        np.rint((side + offset).astype(np.float32) * stored) for side in (reached, reached - gain)
    )
    distance = np.abs(wanted / slope - offset - border) - gain / 2
    error = np.maximum(distance, 0) / (gain * thresholds[-1] / len(thresholds))
    return QuantGrid(
        stored,
        offset,
        weight,
        1 / fine,
        half - lowest,
        ((above >= points) & (below < points)).all(0),
        float(error.max()),
    )


def _slope(currents: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Fit a line through the origin by least squares, per channel."""
    return (currents * points).sum(0) / (currents**2).sum(0)


_FLOAT32_ERROR = 1e-6
"""Relative error of a scale when an engine multiplies by it in float32."""
_MOST_MOVED = 1 / 16
"""Largest move of a threshold, in steps; neurons that would exceed it are written exactly."""
_END = 2**31 - 1
"""End of a slice behind the last position of any axis."""


class AffineFit(NamedTuple):
    """Thresholds as a straight line: ``level = round(scale * (current + offset))``, per channel."""

    scale: np.ndarray
    offset: np.ndarray
    is_exact: np.ndarray
    """Whether every integer current gets its exact level."""
    error: float
    """The largest move of a threshold, in steps; 0 if it affects a single current only."""


class Int8FusionGroups:
    """Writes fusion groups as int8 convolutions.

    Args:
        graph: receives the operators.
        network: an integer network of one timestep.
        is_lossy: whether sums with a shortcut may be rounded to bytes too.
    """

    def __init__(self, graph: Graph, network: LoweredNetwork, *, is_lossy: bool) -> None:
        if network.timesteps != 1 or not network.is_integer:
            raise ParameterError(
                f"int8 styles need an integer network of one timestep, because membranes need "
                f'more than 8 bits; this one has {network.timesteps}; use style "fast"'
            )
        self._graph = graph
        self._bytes: dict[str, str] = {}
        self.num_inexact_channels = 0
        self._fits: dict[str, AffineFit | QuantGrid] = {}
        self._fusion_groups = find_fusion_groups(network)
        for path, group in list(self._fusion_groups.items()):
            fit = _fit_group(group, is_lossy=is_lossy)
            if fit is None or fit.error > _MOST_MOVED:
                del self._fusion_groups[path]
            else:
                self._fits[path] = fit
        self.nodes = {node for group in self._fusion_groups.values() for node in group.nodes}
        """Paths of the nodes that are part of a fusion group."""

    def __contains__(self, path: str) -> bool:
        return path in self._fusion_groups

    def write(self, path: str, read: Callable[[str], str]) -> str:
        """Return a neuron's levels as floats that engines recognise as dequantised bytes.

        Args:
            path: path of the neuron.
            read: returns the value at a path, integers as floats.
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
        # OpenVINO moves scales through float arithmetic behind bytes, which rounds; Abs stops it.
        made = graph.op("Abs", graph.op("DequantizeLinear", level, *self._unit()))
        self._bytes[made] = level
        return made

    def _residual(self, group: FusionGroup, grid: QuantGrid, inputs: str, beside: str) -> str:
        """Return convolution, rounded to bytes, plus shortcut, in steps less half a step."""
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
        """Return the current with all biases and the offset added, in the unit of the scale."""
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

        OpenVINO convolves bytes here and returns the exact sum. ONNX Runtime has no such operator
        and convolves floats, for which it must fold the weights at load time. It would not fold a
        DequantizeLinear of weights.
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
        """Return integer-valued floats as bytes, converted once."""
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


def _fit_group(group: FusionGroup, *, is_lossy: bool) -> AffineFit | QuantGrid | None:
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
    """Return the factor by which weights can grow, to bring half a step closer to an integer."""
    assert synapse.max_input is not None
    largest = int(synapse.weight.long().abs().flatten(1).sum(1).max()) * synapse.max_input
    largest += 0 if synapse.bias is None else int(synapse.bias.long().abs().max())
    limit = (EXACT_FLOAT32 - 1) // max(largest, int(neuron.thresholds.max()))
    return max(1, min(WEIGHT_MAX // max(int(synapse.weight.int().abs().max()), 1), limit))


def fit_affine(thresholds: Tensor, *, gain: int) -> AffineFit:
    """Find the line that rounds as many integer currents as possible to their level.

    Threshold k must lie between the largest current that rounds to k - 1 and the smallest that
    rounds to k. Of a few offsets, every channel uses the one with the widest range of scales.

    Args:
        thresholds: thresholds ``[N, C]``, integers.
        gain: factor by which weights were multiplied; currents are multiples of it.
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
    is_exact = ((above >= levels) & (below < levels)).all(0) & (most > _FLOAT32_ERROR)
    distance = np.abs((levels - 0.5) / scale - offset - (reached - gain / 2)) - gain / 2
    is_moved = distance > gain  # affects more than one current
    error = np.where(is_moved, distance, 0) / np.maximum(reached[-1] / len(reached), 1)
    return AffineFit(stored, offset, is_exact, float(error.max()))


def _straight_offset(currents: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return where ``points = slope * (currents + offset)`` by least squares, per channel."""
    if len(points) == 1:
        return -currents[0] / 2
    centred, wanted = currents - currents.mean(0), points - points.mean()
    slope = (centred * wanted).sum(0) / np.maximum((centred**2).sum(0), 1)
    return points.mean() / np.maximum(slope, 1e-12) - currents.mean(0)
