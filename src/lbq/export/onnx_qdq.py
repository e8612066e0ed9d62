"""Synapse and neuron as one int8 convolution, for networks of a single timestep.

Without a second timestep there is no membrane to keep: a level is the current divided by the step,
rounded down and saturated, which is what a requantising int8 convolution does. Engines recognise
it between QuantizeLinear and DequantizeLinear. Rounding down is rounding to nearest with half a
step less; that half must be an integer in the unit of the accumulator, so in some channels a
current within one unit of a threshold gets the neighbouring level. Such channels are counted.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lbq.deploy.network import LoweredNetwork
from lbq.deploy.nodes import EXACT_FLOAT32, IntegerNeuron, Repeat, Synapse
from lbq.errors import ParameterError
from lbq.export.onnx_graph import Graph
from lbq.export.onnx_real import convolution

_BYTE_MAX = 255
_FLOAT32_ROOM = 1e-6
"""Share by which a scale may be off when an engine multiplies by it in float32."""
_WEIGHT_MAX = 127
_PAIR_MAX = 2**15 - 1
"""Where older processors saturate the sum of two products of a byte and a signed byte."""


class Line(NamedTuple):
    """A ladder as a straight line: ``level = round(scale * (current + offset))``, per channel."""

    scale: np.ndarray
    offset: np.ndarray
    is_exact: np.ndarray
    """Whether every integer current gets its own level."""


class Int8Pairs:
    """Writes a convolution and its neuron as one int8 convolution.

    Args:
        graph: where to.
        network: of integers, with one timestep.
    """

    def __init__(self, graph: Graph, network: LoweredNetwork) -> None:
        if network.timesteps != 1 or not network.is_integer:
            raise ParameterError(
                f'style "int8" takes an integer network of one timestep: beyond, membranes need '
                f'more than 8 bits. This one has {network.timesteps}; use style "fast"'
            )
        self._graph = graph
        self._quantized: dict[str, str] = {}
        self.num_inexact_channels = 0
        self.synapse_of = _pairs(network)
        """For every neuron that is written with its synapse: that synapse's path."""

    def write(self, synapse: Synapse, neuron: IntegerNeuron, value: str) -> str:
        """Return the levels as floats that engines know to be bytes."""
        graph = self._graph
        gain = _gain(synapse, neuron)
        line = fit_ladder(neuron.ladder, gain=gain)
        self.num_inexact_channels += int((~line.is_exact).sum())
        bias = line.offset
        if synapse.bias is not None:
            bias = bias + synapse.bias.numpy() * gain
        channels = len(synapse.weight)
        scale = graph.constant(np.broadcast_to(line.scale, channels), np.float32)
        weight = graph.constant(synapse.weight * gain, np.int8)
        stored_bias = graph.constant(np.broadcast_to(bias, channels), np.int32)
        current = graph.op(
            "Conv",
            self._bytes(value),
            graph.op("DequantizeLinear", weight, scale, axis=0),
            graph.op("DequantizeLinear", stored_bias, scale, axis=0),
            **convolution(synapse),
        )
        level = graph.op("QuantizeLinear", current, *self._unit())
        if neuron.max_level < _BYTE_MAX:
            limits = (graph.constant(limit, np.uint8) for limit in (0, neuron.max_level))
            level = graph.op("Clip", level, *limits)
        made = graph.op("DequantizeLinear", level, *self._unit())
        self._quantized[made] = made
        return made

    def _bytes(self, value: str) -> str:
        """Mark integer-valued floats as bytes, once."""
        if value not in self._quantized:
            level = self._graph.op("QuantizeLinear", value, *self._unit())
            self._quantized[value] = self._graph.op("DequantizeLinear", level, *self._unit())
        return self._quantized[value]

    def _unit(self) -> tuple[str, str]:
        return self._graph.constant(1, np.float32), self._graph.constant(0, np.uint8)


def _gain(synapse: Synapse, neuron: IntegerNeuron) -> int:
    """Return by how much weights can grow, so that half a step is closer to an integer."""
    assert synapse.max_input is not None
    largest = int(synapse.weight.long().abs().flatten(1).sum(1).max()) * synapse.max_input
    largest += 0 if synapse.bias is None else int(synapse.bias.long().abs().max())
    room = (EXACT_FLOAT32 - 1) // max(largest, int(neuron.ladder.max()))
    return max(1, min(_WEIGHT_MAX // max(int(synapse.weight.int().abs().max()), 1), room))


def fit_ladder(ladder: Tensor, *, gain: int) -> Line:
    """Find the line that rounds to the level of as many integer currents as can be.

    Rung k must lie between the largest current that rounds to k - 1 and the smallest that rounds to
    k. Among a few offsets the one that leaves the scale most room is taken, per channel.

    Args:
        ladder: thresholds ``[N, C]``, integers.
        gain: by how much weights were multiplied, so that currents come in multiples of it.
    """
    reached = ladder.to(torch.float64).numpy() * gain  # [N, C], the smallest current of each level
    missed = reached - gain
    levels = np.arange(1, len(reached) + 1).reshape(-1, 1)
    start = np.round(-reached[-1] / (2 * len(reached)))
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
    return Line(stored, offset, is_exact)


def _pairs(network: LoweredNetwork) -> dict[str, str]:
    readers: dict[str, list[str]] = {}
    for place, _ in network.nodes():
        for name in place.inputs:
            readers.setdefault(name, []).append(place.path)
    before = {place.path: place.inputs[0] for place in network.plan}
    pairs: dict[str, str] = {}
    for path, neuron in network.neurons():
        source = before[path]
        if isinstance(network.get_submodule(source), Repeat) and len(readers[source]) == 1:
            source = before[source]
        synapse = network.get_submodule(source) if source in before else None
        is_alone = len(readers[source]) == 1
        is_narrow = int(neuron.ladder.max()) < EXACT_FLOAT32
        if is_alone and is_narrow and isinstance(synapse, Synapse) and _fits(synapse):
            pairs[path] = source
    return pairs


def _fits(node: Synapse) -> bool:
    """Tell whether a synapse fits an int8 convolution that saturates nowhere."""
    if node.is_linear or node.weight.dtype != torch.int8 or node.max_input is None:
        return False
    is_map = node.bias is not None and node.bias.dim() != 1
    return not is_map and 2 * node.max_input * _WEIGHT_MAX <= _PAIR_MAX
