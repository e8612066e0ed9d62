"""Sums of currents, offsets, and products of levels with levels."""

from collections.abc import Sequence
from itertools import product
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from lbq.graph.operators.operator_base import (
    Interval,
    Operator,
    Role,
    Value,
    check_alike,
    require,
)
from lbq.graph.operators.rounding import Rounding, unit_of_constant
from lbq.graph.operators.synapse import Product, constant_interval

_LARGEST = 2**31 - 1


class Merge(Operator):
    """Adds currents."""

    op = "merge"
    num_inputs = (1, 2**16)

    def __call__(self, *currents: Tensor) -> Tensor:
        """Add, from left to right."""
        total = currents[0]
        for current in currents[1:]:
            total = total + current
        return total

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Keep the shape, which all inputs have."""
        return check_alike(inputs, levels=False)

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Add the intervals; partial sums may lack any of them."""
        outer, inner = inputs[0], inputs[0].with_zero()
        for interval in inputs[1:]:
            outer, inner = outer.plus(interval), inner.plus(interval.with_zero())
        return inner, outer


class Offset(Operator):
    """Adds a constant to currents, such as a position embedding.

    Args:
        bias: as many axes as the currents of one sample at one timestep, each as long or 1.
    """

    op = "offset"
    bias: Annotated[Tensor, Role(integer=("I32",))]

    def __call__(self, currents: Tensor) -> Tensor:
        """Add to every sample and timestep."""
        return currents + self.bias

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Keep the shape."""
        value, shape = check_alike(inputs, levels=False), tuple(self.bias.shape)
        fits = _broadcast(value.shape, shape) == value.shape
        require(fits, "shape", f"a constant of shape {shape} is added to {value.shape}")
        return value

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Add the smallest and largest constant of each channel."""
        outer = inputs[0].plus(constant_interval(self.bias))
        return outer.with_zero(), outer

    def least_unit(self) -> Tensor:
        """Make the constant fit."""
        return unit_of_constant(self.bias)

    def to_integer(self, rounding: Rounding) -> "Offset":
        """Round the constant."""
        return Offset(rounding.constant(self.bias))


class LevelsProduct(Operator):
    """A product of two tensors of levels."""

    num_inputs = (2, 2)
    counted_as = "product"

    def __call__(self, left: Tensor, right: Tensor, multiply: Product | None = None) -> Tensor:
        """Return the products; ``multiply`` replaces the dense one."""
        return self.multiply(left, right) if multiply is None else multiply(self, left, right)

    def multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiply, exactly, in int32."""
        raise NotImplementedError

    def num_terms(self, left: Value) -> int:
        """Return how many products are added to one."""
        raise NotImplementedError

    def total(self, left: Tensor, right: Tensor) -> int:
        """Return the sum of all products of int64."""
        raise NotImplementedError

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Add as many products as a sum has terms."""
        left, right = inputs
        corners = [a * b for a, b in product(left, right)]
        products = Interval(np.minimum.reduce(corners), np.maximum.reduce(corners))
        outer = products.times(self.num_terms(values[0]))
        return outer.with_zero(), outer

    def _max_level(self, inputs: Sequence[Value]) -> int:
        """Return the largest output; raise unless both inputs are levels."""
        left, right = inputs
        are_levels = left.max_level is not None and right.max_level is not None
        require(are_levels, "signal", "it takes levels, it reads currents")
        require(left.has_time == right.has_time, "shape", "one of its inputs has no time")
        most = (left.max_level or 0) * (right.max_level or 0) * self.num_terms(left)
        require(most <= _LARGEST, "max-level", f"its products reach {most}, beyond 32 bits")
        return most


class Multiply(LevelsProduct):
    """The product of two tensors of levels, element by element; axes of length 1 are repeated."""

    op = "multiply"

    def multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiply, in int32."""
        return left.to(torch.int32) * right.to(torch.int32)

    def num_terms(self, left: Value) -> int:
        """Add nothing."""
        return 1

    def total(self, left: Tensor, right: Tensor) -> int:
        """Repeat axes of length 1."""
        return int((left * right).sum())

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Repeat axes of length 1."""
        left, right = inputs
        most = self._max_level(inputs)
        shape = _broadcast(left.shape, right.shape)
        require(
            shape is not None,
            "shape",
            f"it multiplies {left.shape} by {right.shape}; axes are equal, or one of them is 1",
        )
        return Value(shape=shape or (), has_time=left.has_time, max_level=most)


class Matmul(LevelsProduct):
    """Products of matrices of levels: ``[groups, rows, n]`` by ``[groups, n, columns]``."""

    op = "matmul"

    def multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiply at every timestep; sums of 32 bits are exact in float64."""
        return (left.to(torch.float64) @ right.to(torch.float64)).to(torch.int32)

    def num_terms(self, left: Value) -> int:
        """Add along the columns of the left matrix."""
        return left.shape[2]

    def total(self, left: Tensor, right: Tensor) -> int:
        """Multiply the sums of a column and of the row that it meets."""
        return int((left.sum(-2) * right.sum(-1)).sum())

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Multiply the matrices of each group."""
        left, right = inputs
        where = f"it multiplies matrices of {left.shape} and {right.shape}"
        require(len(left.shape) == len(right.shape) == 3, "shape", where)
        is_right = left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1]
        require(is_right, "shape", where)
        most = self._max_level(inputs)
        shape = (*left.shape[:2], right.shape[2])
        return Value(shape=shape, has_time=left.has_time, max_level=most)


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of both with axes of length 1 repeated; None if they do not fit."""
    if len(left) != len(right) or any(
        a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)
    ):
        return None
    return tuple(max(a, b) for a, b in zip(left, right, strict=True))
