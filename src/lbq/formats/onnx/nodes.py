"""Nodes that are the same ONNX operators in integers and in float32."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from lbq.formats.onnx.graph import Graph, TimedValue, stack
from lbq.graph.operators import (
    Concat,
    Merge,
    Multiply,
    Offset,
    Pool,
    Readout,
    Rearrange,
    Repeat,
    Shortcut,
    Slice,
    Synapse,
    Upsample,
    ZeroPad,
)
from lbq.graph.operators.moves import Roll


class Nodes:
    """Base of the writers; every method is named after the operator that it writes.

    A method takes the node, the input values, which depend on time in the same way, and the output
    value with its shape and range. It returns the name of the output.

    Args:
        graph: receives the operators.
        dtype: dtype of currents.
    """

    def __init__(self, graph: Graph, dtype: type[np.generic]) -> None:
        self.graph, self._dtype = graph, dtype

    def numbers(self, value: TimedValue) -> str:
        """Return the name of a value with the dtype of currents."""
        return value.batch(self.graph)

    def stored(self, name: str, made: TimedValue) -> str:
        """Convert numbers to the dtype in which this value is stored."""
        return name

    def shortcut(self, node: Shortcut, inputs: list[TimedValue], made: TimedValue) -> str:
        """Multiply every channel."""
        weight = self.constant(per_channel(node.weight, made.shape))
        return self.with_bias(self.scaled(self.numbers(inputs[0]), weight), node, made)

    def scaled(self, name: str, weight: str) -> str:
        """Multiply by a constant."""
        return self.graph.op("Mul", name, weight)

    def with_bias(self, product: str, node: Synapse | Shortcut, made: TimedValue) -> str:
        """Add the bias, if there is one."""
        if node.bias is None:
            return product
        bias = node.bias if node.bias.dim() > 1 else per_channel(node.bias, made.shape)
        return self.graph.op("Add", product, self.constant(bias))

    def merge(self, node: Merge, inputs: list[TimedValue], made: TimedValue) -> str:
        """Add."""
        return self.graph.chain("Add", [value.batch(self.graph) for value in inputs])

    def offset(self, node: Offset, inputs: list[TimedValue], made: TimedValue) -> str:
        """Add a constant."""
        return self.graph.op("Add", inputs[0].batch(self.graph), self.constant(node.bias))

    def multiply(self, node: Multiply, inputs: list[TimedValue], made: TimedValue) -> str:
        """Multiply element by element."""
        return self.stored(self.graph.op("Mul", *map(self.numbers, inputs)), made)

    def repeat(self, node: Repeat, inputs: list[TimedValue], made: TimedValue) -> str:
        """Return the input unchanged, because one value stands for all timesteps."""
        return inputs[0].batch(self.graph)

    def readout(self, node: Readout, inputs: list[TimedValue], made: TimedValue) -> str:
        """Return the mean, the sum, or all timesteps."""
        (currents,) = inputs
        if currents.time == "still":
            return currents.batch(self.graph)
        instants = currents.by_instant(self.graph)
        if node.over_time == "none":
            return stack(self.graph, instants)
        total = self.graph.chain("Add", instants)
        if node.over_time == "sum":
            return total
        return self.graph.op("Div", total, self.constant(len(instants)))

    def concat(self, node: Concat, inputs: list[TimedValue], made: TimedValue) -> str:
        """Concatenate values after converting them to one dtype."""
        names = [
            value.batch(self.graph) if value.is_byte == made.is_byte else self.numbers(value)
            for value in inputs
        ]
        return self.graph.op("Concat", *names, axis=1 + node.axis)

    def slice(self, node: Slice, inputs: list[TimedValue], made: TimedValue) -> str:
        """Take a part of an axis."""
        return self.part(
            inputs[0].batch(self.graph), node.axis, node.start, node.stop, step=node.step
        )

    def roll(self, node: Roll, inputs: list[TimedValue], made: TimedValue) -> str:
        """Gather positions for a flip, or join two parts for a roll.

        A roll does not use Gather, because OpenVINO 2026.4 moves the order of channels into the
        weights behind it. Its result is wrong unless the order is its own inverse, as in a flip.
        """
        name, axis, size = inputs[0].batch(self.graph), node.axis, made.shape[node.axis]
        if node.step < 0:
            places = self.graph.constant((node.start - np.arange(size)) % size, np.int64)
            return self.graph.op("Gather", name, places, axis=1 + axis)
        ranges = ((node.start, size), (0, node.start))
        parts = [
            self.part(name, axis, start, stop, step=1) for start, stop in ranges if start < stop
        ]
        return self.graph.op("Concat", *parts, axis=1 + axis)

    def rearrange(self, node: Rearrange, inputs: list[TimedValue], made: TimedValue) -> str:
        """Split, permute and merge."""
        name = self._reshaped(inputs[0].batch(self.graph), inputs[0].shape, node.sizes)
        if node.order != tuple(range(len(node.order))):
            name = self.graph.op("Transpose", name, perm=[0, *(1 + axis for axis in node.order)])
        return self._reshaped(name, [node.sizes[axis] for axis in node.order], node.shape)

    def upsample(self, node: Upsample, inputs: list[TimedValue], made: TimedValue) -> str:
        """Repeat every position, or put zeros between two."""
        tables: list[np.ndarray] = []
        for axis, factor in enumerate(node.factors, start=1):
            size = inputs[0].shape[axis]
            table = np.repeat(np.arange(size), factor)
            if node.fill == "zeros":
                table[np.arange(len(table)) % factor > 0] = size
            tables.append(table[: made.shape[axis]])
        return self._looked_up(inputs[0], tables, made)

    def zero_pad(self, node: ZeroPad, inputs: list[TimedValue], made: TimedValue) -> str:
        """Add zeros around the spatial axes."""
        sides = zip(inputs[0].shape[1:], node.before, node.after, strict=True)
        tables = [np.array([n] * before + [*range(n)] + [n] * after) for n, before, after in sides]
        return self._looked_up(inputs[0], tables, made)

    def _looked_up(self, value: TimedValue, tables: list[np.ndarray], made: TimedValue) -> str:
        """Gather positions, axis by axis; the index behind the last position gives a zero.

        Pad is not used, because ONNX Runtime fuses it with a max pool behind it, and the max pool
        pads with the lowest number instead of zero.
        """
        name, sizes = value.batch(self.graph), value.shape[1:]
        behind = [size in table for table, size in zip(tables, sizes, strict=True)]
        if any(behind):
            name = self.padded(value, [0] * len(sizes), behind)
        for axis, (table, size) in enumerate(zip(tables, sizes, strict=True), start=2):
            if len(table) != size:
                name = self.graph.op("Gather", name, self.sizes(table), axis=axis)
        return self.stored(name, made) if any(behind) else name

    def padded(
        self, value: TimedValue, before: Sequence[int], after: Sequence[int], filler: int = 0
    ) -> str:
        """Pad the spatial axes with a constant."""
        pads = self.sizes([0, 0, *before, 0, 0, *after])
        return self.graph.op("Pad", self.numbers(value), pads, self.constant(filler))

    def sum_over_space(self, value: TimedValue) -> str:
        """Sum all positions of every channel.

        OpenVINO confuses the channels of a scale behind a sum over one axis, so a single axis is
        summed as a map of two.
        """
        channels, *space = value.shape
        is_map = len(space) == 2
        name = self.numbers(value)
        if not is_map:
            name = self.graph.op("Reshape", name, self.sizes([-1, channels, *space, 1]))
        name = self.graph.op("ReduceSum", name, self.sizes([2, 3]), keepdims=1)
        return name if is_map else self.graph.op("Reshape", name, self.sizes([-1, channels, 1]))

    def part(self, name: str, axis: int, start: int, stop: int, *, step: int) -> str:
        """Take every step-th value of an axis; axis 0 is the channels."""
        numbers = (start, stop, 1 + axis, step)
        return self.graph.op("Slice", name, *(self.sizes([number]) for number in numbers))

    def constant(self, values: Tensor | int) -> str:
        """Store a constant with the dtype of currents."""
        return self.graph.constant(values, self._dtype)

    def sizes(self, numbers: Sequence[int] | np.ndarray) -> str:
        """Store sizes or positions."""
        return self.graph.constant(np.array(numbers), np.int64)

    def _reshaped(self, name: str, before: Sequence[int], shape: Sequence[int]) -> str:
        if tuple(before) == tuple(shape):
            return name
        return self.graph.op("Reshape", name, self.sizes([-1, *shape]))


def per_channel(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Shape one value per channel to broadcast against ``[B, *shape]``."""
    if values.numel() == 1:
        return values.reshape(())
    return values.reshape(1, -1, *[1] * (len(shape) - 1))


def convolution(node: Synapse) -> dict[str, object]:
    """Return the attributes of a convolution.

    The dilation of an axis with one tap is left out, because OpenVINO crashes on it.
    """
    taps = zip(node.weight.shape[2:], node.dilation, strict=True)
    return {
        "strides": list(node.stride),
        "pads": [*node.padding, *node.padding],
        "dilations": [dilation if size > 1 else 1 for size, dilation in taps],
        "group": node.groups,
    }


def window(node: Pool) -> dict[str, object]:
    """Return the attributes of a pool."""
    return {
        "kernel_shape": list(node.kernel),
        "strides": list(node.stride),
        "pads": [*node.padding, *node.padding],
    }


def is_global(node: Pool, inputs: TimedValue) -> bool:
    """Return whether one window covers the whole space."""
    return node.kernel == inputs.shape[1:] and not any(node.padding)
