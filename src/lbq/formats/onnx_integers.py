"""Nodes as ONNX operators in integers: the same bits in every engine.

ONNX Runtime computes int32 as int32. OpenVINO adds, subtracts and multiplies int32 exactly, but
convolves, sums, divides and compares in float32, which rounds beyond 2**24, and pulls what follows
a convolution into it. So products are formed from digits small enough for float32 and fenced off,
sums are chains of additions, and large numbers are compared by the sign of their difference and
divided in two halves.
"""

import numpy as np
import torch
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
from lbq.formats.onnx_real import PAIR_MAX, convolution, covers_everything, per_channel, window

INT32_MAX = 2**31 - 1
_HALF = 2**16
_LOWEST = -(2**31)


class IntegerNodes:
    """Writes nodes in int32; levels travel as uint8.

    Args:
        graph: where to.
        is_wide: whether the network has integers that float32 would round.
    """

    def __init__(self, graph: Graph, *, is_wide: bool) -> None:
        self.graph, self._is_wide = graph, is_wide

    def enter(self, value: str) -> str:
        """Take what enters the network: bytes."""
        return value

    def synapse(self, node: Synapse, inputs: TimedValue) -> str:
        """Convolve or multiply digit by digit, and add the digits up in int32."""
        graph = self.graph
        weights = _weight_digits(node.weight)
        bits = _input_bits(weights, inputs.high)
        self._check_digits(weights, inputs.high, bits)
        total: str | None = None
        for place, digit in self._input_digits(inputs, bits):
            for worth, weight in weights:
                product = self._product(node, inputs, digit, weight)
                if place * worth > 1:
                    product = graph.op("Mul", product, self._constant(place * worth))
                total = product if total is None else graph.op("Add", total, product)
        assert total is not None
        if node.bias is None:
            return total
        bias = node.bias if node.is_linear else node.bias.reshape(len(node.bias), *_map(node.bias))
        return graph.op("Add", total, self._constant(bias))

    def _product(self, node: Synapse, inputs: TimedValue, digit: str, weight: Tensor) -> str:
        graph = self.graph
        stored = graph.constant(
            weight.T if node.is_linear else weight,
            np.uint8 if weight.dtype == torch.uint8 else np.int8,
        )
        if node.is_linear:
            digit = digit if len(inputs.shape) == 1 else graph.op("Flatten", digit, axis=1)
            product = graph.op("MatMulInteger", digit, stored)
        else:
            product = graph.op("ConvInteger", digit, stored, **convolution(node))
        if not self._is_wide:
            return product
        return graph.op("BitwiseAnd", product, self._constant(-1))  # a fence: the same bits

    def _input_digits(self, inputs: TimedValue, bits: int) -> list[tuple[int, str]]:
        """Cut what enters into digits of some bits: what each is worth, and its name, as bytes."""
        graph, value = self.graph, inputs.batch(self.graph)
        if inputs.high < 2**bits:
            return [(1, value if inputs.is_byte else graph.cast(value, np.uint8))]
        rest = graph.cast(value, np.int32) if inputs.is_byte else value
        mask, base = self._constant(2**bits - 1), self._constant(2**bits)
        digits: list[tuple[int, str]] = []
        place, left = 1, inputs.high
        while left:
            digit = graph.op("BitwiseAnd", rest, mask) if left >= 2**bits else rest
            digits.append((place, graph.cast(digit, np.uint8)))
            place, left = place << bits, left >> bits
            if left:
                rest = graph.op("Div", graph.op("Sub", rest, digit), base)
        return digits

    def _check_digits(self, weights: list[tuple[int, Tensor]], high: int, bits: int) -> None:
        largest = sum(worth * _largest_sum(weight) for worth, weight in weights) * high
        if largest > INT32_MAX or high >= EXACT_FLOAT32 or bits < 1:
            raise LoweringError(
                f"its sums, digit by digit, can reach {largest}, which no 32-bit integer holds; "
                f"use fewer weight bits"
            )

    def shortcut(self, node: Shortcut, inputs: TimedValue) -> str:
        """Multiply every channel in int32."""
        graph = self.graph
        weight = self._constant(per_channel(node.weight, inputs.shape))
        product = graph.op("Mul", self._int32(inputs), weight)
        if node.bias is None:
            return product
        return graph.op("Add", product, self._constant(per_channel(node.bias, inputs.shape)))

    def pool(self, node: Pool, inputs: TimedValue) -> str:
        """Take the largest or the sum of every window; sums are int32."""
        graph = self.graph
        if node.kind == "max":
            if inputs.is_byte:
                return graph.op("MaxPool", inputs.batch(graph), **window(node))
            if inputs.largest < EXACT_FLOAT32:
                real = graph.cast(inputs.batch(graph), np.float32)
                return graph.cast(graph.op("MaxPool", real, **window(node)), np.int32)
            return self._slide(node, inputs, "Max", filler=_LOWEST)
        area = node.kernel[0] * node.kernel[1]
        if covers_everything(node, inputs.shape) and inputs.largest * area < EXACT_FLOAT32:
            axes = graph.constant(np.array([2, 3]), np.int64)
            return graph.op("ReduceSum", self._int32(inputs), axes, keepdims=1)
        return self._slide(node, inputs, "Add", filler=0)

    def _slide(self, node: Pool, inputs: TimedValue, kind: str, *, filler: int) -> str:
        """Pool by slices, along the rows and then along the columns: exact for every integer."""
        graph, value = self.graph, self._int32(inputs)
        if any(node.padding):
            pads = np.array([0, 0, *node.padding, 0, 0, *node.padding])
            value = graph.op("Pad", value, graph.constant(pads, np.int64), self._constant(filler))
        for axis in (0, 1):
            size, stride = node.kernel[axis], node.stride[axis]
            padded = inputs.shape[1 + axis] + 2 * node.padding[axis]
            last = (padded - size) // stride * stride
            slices = [
                graph.op(
                    "Slice",
                    value,
                    *(
                        graph.constant(np.array([number]), np.int64)
                        for number in (first, first + last + 1, 2 + axis, stride)
                    ),
                )
                for first in range(size)
            ]
            value = graph.chain(kind, slices)
        return value

    def neuron(self, node: LevelNeuron, currents: TimedValue, reach: tuple[int, int]) -> list[str]:
        """Unroll a neuron whose membrane stays within ``reach``; return its levels as bytes."""
        if reach[1] - reach[0] > INT32_MAX:
            raise LoweringError(
                f"its membrane can be {reach[0]}..{reach[1]}, a distance that no 32-bit integer "
                f"holds; use fewer weight bits"
            )
        assert isinstance(node, IntegerNeuron)
        return _Unrolled(self.graph, node, currents, reach).levels

    def readout(self, node: Readout, currents: TimedValue) -> str:
        """Answer with the sum or with all instants."""
        instants = currents.by_instant(self.graph)
        if node.over_time == "none":
            return stack(self.graph, instants)
        return self.graph.chain("Add", instants)

    def _int32(self, inputs: TimedValue) -> str:
        value = inputs.batch(self.graph)
        return self.graph.cast(value, np.int32) if inputs.is_byte else value

    def _constant(self, values: Tensor | int) -> str:
        return self.graph.constant(values, np.int32)


class _Unrolled:
    """A neuron, timestep by timestep, in int32."""

    def __init__(
        self, graph: Graph, node: IntegerNeuron, currents: TimedValue, reach: tuple[int, int]
    ) -> None:
        self._graph, self._node = graph, node
        low, high = reach
        self._is_wide = max(-low, high) >= EXACT_FLOAT32
        # larger thresholds are never reached
        thresholds = node.thresholds.clamp(max=min(high + 1, INT32_MAX))
        self._thresholds = [
            self._constant(per_channel(r, currents.shape)) for r in thresholds.unbind(0)
        ]
        self._search = None
        if len(thresholds) > UNROLLED:
            self._search = ThresholdSearch(graph, thresholds, shape=currents.shape, dtype=np.int32)
        self._reset_amount = self._constant(per_channel(node.reset_amount, currents.shape))
        self._zero = self._constant(0)
        self.levels: list[str] = []
        instants = currents.by_instant(graph)
        membrane, spike, first = "", "", ""
        for t, current in enumerate(instants):
            membrane = current if t == 0 else self._integrated(membrane, spike, first, current)
            first = self._reaches(membrane, self._thresholds[0])
            spike = level = graph.cast(first, np.int32)
            if self._search is not None:
                level = self._search.count(membrane, self._reaches)
            else:
                reached = [self._reaches(membrane, threshold) for threshold in self._thresholds[1:]]
                for count in [graph.cast(threshold, np.int32) for threshold in reached]:
                    level = graph.op("Add", level, count)
            if node.reset == "level" and not node.resets_after_decay:
                spike = level
            self.levels.append(graph.cast(level, np.uint8))

    def _integrated(self, membrane: str, spike: str, first: str, current: str) -> str:
        """Reset the last membrane, decay it and add the current, in the neuron's own order."""
        node, graph = self._node, self._graph
        if node.resets_after_decay:
            added = graph.op("Add", self._decayed(membrane), current)
            return graph.op("Sub", added, graph.op("Mul", self._reset_amount, spike))
        if node.reset == "zero":
            membrane = graph.op("Where", first, self._zero, membrane)
        elif node.reset != "none":
            membrane = graph.op("Sub", membrane, graph.op("Mul", self._reset_amount, spike))
        return graph.op("Add", self._decayed(membrane), current)

    def _decayed(self, carry: str) -> str:
        """Multiply and shift right, rounding down: both halves without their lowest bits."""
        node, graph = self._node, self._graph
        product = graph.op("Mul", carry, self._constant(node.multiplier))
        if node.shift == 0:
            return product
        low_mask, divisor = _HALF - 2**node.shift, self._constant(2**node.shift)
        halves = [
            graph.op("Div", graph.op("BitwiseAnd", product, self._constant(mask)), divisor)
            for mask in (-_HALF, low_mask)
        ]
        return graph.op("Add", *halves)

    def _reaches(self, membrane: str, threshold: str) -> str:
        if not self._is_wide:
            return self._graph.op("GreaterOrEqual", membrane, threshold)
        distance = self._graph.op("Sub", membrane, threshold)
        return self._graph.op("GreaterOrEqual", distance, self._zero)

    def _constant(self, values: Tensor | int) -> str:
        return self._graph.constant(values, np.int32)


def _weight_digits(weight: Tensor) -> list[tuple[int, Tensor]]:
    """Cut integer weights into bytes: what each byte is worth, the lower one without a sign."""
    if weight.dtype == torch.int8:
        return [(1, weight)]
    wide = weight.to(torch.int32)
    return [(1, (wide & 255).to(torch.uint8)), (256, (wide >> 8).to(torch.int8))]


def _input_bits(weights: list[tuple[int, Tensor]], high: int) -> int:
    """Return how many bits a digit of the input may have so that every product is exact."""
    return max((b for b in range(1, 9) if _is_exact(weights, min(high, 2**b - 1))), default=0)


def _is_exact(weights: list[tuple[int, Tensor]], largest: int) -> bool:
    return all(
        _largest_sum(weight) * largest < EXACT_FLOAT32
        and (weight.dtype == torch.uint8 or 2 * int(weight.int().abs().max()) * largest <= PAIR_MAX)
        for _, weight in weights
    )


def _largest_sum(weight: Tensor) -> int:
    return int(weight.long().abs().flatten(1).sum(1).max())


def _map(bias: Tensor) -> tuple[int, ...]:
    return tuple(bias.shape[1:]) if bias.dim() == 3 else (1, 1)
