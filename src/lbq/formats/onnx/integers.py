"""Nodes as ONNX operators in integers, with the same results in every engine.

ONNX Runtime computes int32 exactly. OpenVINO adds, subtracts and multiplies int32 exactly, but it
convolves, sums, divides and compares in float32, which rounds beyond 2**24. It also fuses operators
behind a convolution into it. Products are therefore computed from digits small enough for float32,
with an operator behind them that prevents fusion. Sums are chains of additions. Large numbers are
compared by the sign of their difference and divided in two halves.
"""

import numpy as np
import torch
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
    Synapse,
)

PAIR_MAX = 2**15 - 1
"""Limit at which older processors saturate the sum of two products of uint8 and int8."""
INT32_MAX = 2**31 - 1
_HALF = 2**16
_LOWEST = -(2**31)


class IntegerNodes(Nodes):
    """Writes nodes in int32; levels that fit are stored as uint8.

    Args:
        graph: receives the operators.
        is_wide: whether the network has integers that float32 would round.
    """

    def __init__(self, graph: Graph, *, is_wide: bool) -> None:
        super().__init__(graph, np.int32)
        self._is_wide = is_wide

    def enter(self, value: str) -> str:
        """Return the network's input unchanged, as bytes."""
        return value

    def numbers(self, value: TimedValue) -> str:
        """Return the name of a value as int32."""
        name = value.batch(self.graph)
        return self.graph.cast(name, np.int32) if value.is_byte else name

    def stored(self, name: str, made: TimedValue) -> str:
        """Convert int32 to bytes where they hold the value."""
        return self.graph.cast(name, np.uint8) if made.is_byte else name

    def synapse(self, node: Synapse, inputs: list[TimedValue], made: TimedValue) -> str:
        """Convolve or multiply digit by digit, and add the digits up in int32."""
        (levels,) = inputs
        weights = _weight_digits(node.weight)
        bits = _input_bits(weights, levels.high)
        largest = sum(worth * _largest_sum(weight) for worth, weight in weights) * levels.high
        if largest > INT32_MAX or bits < 1:
            raise LoweringError(
                f"its sums, digit by digit, can reach {largest}, which exceeds 32 bits; "
                f"use fewer weight bits"
            )
        products = [
            (place * worth, self._product(node, levels, digit, weight))
            for place, digit in self._digits(levels, bits)
            for worth, weight in weights
        ]
        return self.with_bias(self._added_up(products), node, made)

    def _product(self, node: Synapse, levels: TimedValue, digit: str, weight: Tensor) -> str:
        graph = self.graph
        stored = graph.constant(
            weight.T if node.is_linear else weight,
            np.uint8 if weight.dtype == torch.uint8 else np.int8,
        )
        if not node.is_linear:
            return graph.op("ConvInteger", digit, stored, **convolution(node))
        digit = digit if len(levels.shape) == 1 else graph.op("Flatten", digit, axis=1)
        return graph.op("MatMulInteger", digit, stored)

    def matmul(self, node: Matmul, inputs: list[TimedValue], made: TimedValue) -> str:
        """Multiply matrices of levels digit by digit, and add the digits up in int32."""
        left, right = inputs
        bits = _matmul_bits(left.high, right.high, terms=left.shape[2])
        products = [
            (place * worth, self.graph.op("MatMulInteger", digit, other))
            for place, digit in self._digits(left, bits[0])
            for worth, other in self._digits(right, bits[1])
        ]
        return self.stored(self._added_up(products), made)

    def _digits(self, levels: TimedValue, bits: int) -> list[tuple[int, str]]:
        """Split levels into digits of some bits; return the factor and name of each, as bytes."""
        graph = self.graph
        if levels.high < 2**bits:
            name = levels.batch(graph)
            return [(1, name if levels.is_byte else graph.cast(name, np.uint8))]
        value, digits = self.numbers(levels), list[tuple[int, str]]()
        for shift in range(0, levels.high.bit_length(), bits):
            mask = ((2**bits - 1) << shift) & INT32_MAX
            digit = graph.op("BitwiseAnd", value, self.constant(mask))
            if shift:  # exact in float32: no more bits than the digit has
                digit = graph.op("Div", digit, self.constant(2**shift))
            digits.append((2**shift, graph.cast(digit, np.uint8)))
        return digits

    def _added_up(self, products: list[tuple[int, str]]) -> str:
        """Add products of digits, each times its factor."""
        graph, terms = self.graph, list[str]()
        for worth, product in products:
            if self._is_wide:  # prevents fusion; the value stays the same
                product = graph.op("BitwiseAnd", product, self.constant(-1))  # noqa: PLW2901
            terms.append(product if worth == 1 else graph.op("Mul", product, self.constant(worth)))
        return graph.chain("Add", terms)

    def pool(self, node: Pool, inputs: list[TimedValue], made: TimedValue) -> str:
        """Compute the maximum or the sum of every window; sums are computed in int32."""
        graph, (value,) = self.graph, inputs
        if node.kind == "max":
            if value.is_byte:
                return graph.op("MaxPool", value.batch(graph), **window(node))
            if value.largest < EXACT_FLOAT32:
                real = graph.cast(value.batch(graph), np.float32)
                return graph.cast(graph.op("MaxPool", real, **window(node)), np.int32)
            return self._slide(node, inputs[0], made, "Max", filler=_LOWEST)
        if is_global(node, value) and made.largest < EXACT_FLOAT32:
            total = self.sum_over_space(value)
        else:
            total = self._slide(node, value, made, "Add", filler=0)
        return self.stored(total, made)

    def _slide(
        self, node: Pool, value: TimedValue, made: TimedValue, kind: str, *, filler: int
    ) -> str:
        """Pool by slices, axis by axis: exact for every integer."""
        name = self.numbers(value)
        if any(node.padding):
            name = self.padded(value, node.padding, node.padding, filler)
        for axis, (size, stride) in enumerate(zip(node.kernel, node.stride, strict=True), start=1):
            reach = (made.shape[axis] - 1) * stride + 1
            slices = [
                self.part(name, axis, first, first + reach, step=stride) for first in range(size)
            ]
            name = self.graph.chain(kind, slices)
        return name

    def neuron(self, node: LevelNeuron, currents: TimedValue, reach: tuple[int, int]) -> list[str]:
        """Unroll a neuron whose membrane stays within ``reach``; return its levels as bytes."""
        if reach[1] - reach[0] > INT32_MAX:
            raise LoweringError(
                f"its membrane can be {reach[0]}..{reach[1]}, a range that exceeds 32 bits; use "
                f"fewer weight bits"
            )
        assert isinstance(node, IntegerNeuron)
        return _Unrolled(self.graph, node, currents, reach).levels


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
        """Multiply and shift right, rounding down, in two halves of the number."""
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
    """Split integer weights into bytes, each with its factor; the lower byte is unsigned."""
    if weight.dtype == torch.int8:
        return [(1, weight)]
    wide = weight.to(torch.int32)
    return [(1, (wide & 255).to(torch.uint8)), (256, (wide >> 8).to(torch.int8))]


def _input_bits(weights: list[tuple[int, Tensor]], high: int) -> int:
    """Return the largest number of bits of an input digit with exact products."""
    return max((b for b in range(1, 9) if _is_exact(weights, min(high, 2**b - 1))), default=0)


def _is_exact(weights: list[tuple[int, Tensor]], largest: int) -> bool:
    return all(
        _largest_sum(weight) * largest < EXACT_FLOAT32
        and (weight.dtype == torch.uint8 or 2 * int(weight.int().abs().max()) * largest <= PAIR_MAX)
        for _, weight in weights
    )


def _largest_sum(weight: Tensor) -> int:
    return int(weight.long().abs().flatten(1).sum(1).max())


def _matmul_bits(left: int, right: int, *, terms: int) -> tuple[int, int]:
    """Return the bits of the digits of two factors, for the fewest exact products."""
    found = [
        (-(-left.bit_length() // a) * -(-right.bit_length() // b), a, b)
        for a in range(1, 9)
        for b in range(1, 9)
        if terms * min(left, 2**a - 1) * min(right, 2**b - 1) < EXACT_FLOAT32
    ]
    if not found:
        raise LoweringError(f"it adds {terms} products, but float32 is exact only below 2**24")
    return min(found)[1:]
