"""How the axes of a tensor of the trained network are made of the axes of a node's output.

A node gives ``[T, B, C, *space]``, or ``[B, C, *space]`` without time. Reshapes, permutations and
the like of the trained network only change the order in which these axes are read, so they add no
node: an axis of a tensor is a product, in order, of *factors* of the node's axes.
"""

import math
from collections import deque
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lbq.errors import LoweringError

TIME, BATCH, CHANNELS = -2, -1, 0
"""Numbers of the axes of a node's output; the axes of space are 1, 2, ..."""
_NAMES = {TIME: "time", BATCH: "the batch"}


class LayoutError(LoweringError):
    """A tensor of the trained network whose axes are not products of a node's axes."""


@dataclass(frozen=True)
class Factor:
    """A factor of an axis of a node's output: index // stride % size along that axis."""

    axis: int
    size: int
    stride: int = 1


Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor, outermost first; ``()`` is an axis of length 1 that no node has."""

    axes: tuple[Axis, ...]

    @classmethod
    def of_node(
        cls, shape: tuple[int, ...], *, batch: int, timesteps: int | None = None
    ) -> "Layout":
        """Return the layout of a node's output; ``shape`` is ``(C, *space)``."""
        sizes = {TIME: timesteps, BATCH: batch, **dict(enumerate(shape))}
        return cls(tuple((Factor(axis, n),) for axis, n in sizes.items() if n is not None))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        return tuple(math.prod(factor.size for factor in axis) for axis in self.axes)

    @property
    def has_time(self) -> bool:
        """Whether the tensor has a time axis, which may be merged with others."""
        return any(factor.axis == TIME for axis in self.axes for factor in axis)

    @property
    def leading(self) -> int | None:
        """Return how many axes come before the channels; None unless they are T and B in order."""
        for count in (1, 2):
            axes = [factor.axis for axis in self.axes[:count] for factor in axis]
            others = [f.axis for axis in self.axes[count:] for f in axis]
            is_batch = axes == ([TIME, BATCH] if self.has_time else [BATCH])
            if is_batch and not {TIME, BATCH} & set(others):
                return count
        return None

    @property
    def is_sequence(self) -> bool:
        """Whether the tensor is ``[T, B, ...]``."""
        return self.leading == 2 and self.has_time and len(self.axes[0]) == 1

    @property
    def content(self) -> tuple[Axis, ...]:
        """Return the axes behind T and B, without factors of size 1."""
        return tuple(_long(axis) for axis in self.axes[self.leading or 0 :])

    def is_like_node(self, space: tuple[int, ...]) -> bool:
        """Whether the axes behind T and B are the channels and the space of a node, in order."""
        if self.leading is None or len(self.axes) != self.leading + 1 + len(space):
            return False
        return all(self.is_node_axis(own + self.leading, own) for own in range(len(space) + 1))

    def is_node_axis(self, axis: int, own: int) -> bool:
        """Whether an axis of the tensor is a whole axis of the node, up to factors of size 1."""
        factors = _long(self.axes[axis])
        elsewhere = [f for n, other in enumerate(self.axes) if n != axis for f in _long(other)]
        is_whole = own not in {factor.axis for factor in elsewhere}
        return is_whole and len(factors) <= 1 and {factor.axis for factor in factors} <= {own}

    def matches(self, other: "Layout") -> bool:
        """Whether two tensors of equal shape hold the same factors, but for those of size 1."""
        return len(self.axes) == len(other.axes) and all(
            _long(mine) == _long(theirs) for mine, theirs in zip(self.axes, other.axes, strict=True)
        )

    def with_channels(self, channels: int) -> "Layout":
        """Return the layout of a node with another number of channels."""
        return Layout(
            tuple(
                tuple(replace(f, size=channels) if f.axis == CHANNELS else f for f in axis)
                for axis in self.axes
            )
        )

    def reshaped(self, shape: tuple[int, ...]) -> "Layout":
        """Return the layout of the tensor in another shape."""
        waiting = deque(factor for axis in self.axes for factor in axis)
        axes: list[list[Factor]] = []
        for size in shape:
            axis: list[Factor] = []
            missing = size
            if size == 1 and waiting and waiting[0].size == 1:
                axis.append(waiting.popleft())
            while missing > 1:
                factor = waiting.popleft()
                common = math.gcd(missing, factor.size)
                if factor.size > 1 and common == 1:
                    raise self._mixed(shape)
                if common < factor.size:
                    if factor.axis < 0:
                        raise self._mixed(shape, f"cuts {_NAMES[factor.axis]} into parts")
                    inner = factor.size // common
                    waiting.appendleft(Factor(factor.axis, inner, factor.stride))
                    factor = Factor(factor.axis, common, factor.stride * inner)
                axis.append(factor)
                missing //= common
            axes.append(axis)
        if waiting:  # of size 1
            axes[-1].extend(waiting)
        return Layout(tuple(_merged(axis) for axis in axes))

    def _mixed(self, shape: tuple[int, ...], why: str = "mixes axes") -> LayoutError:
        return LayoutError(f"a reshape of {list(self.shape)} to {list(shape)} {why}")

    def permuted(self, order: tuple[int, ...]) -> "Layout":
        """Return the layout with its axes in another order."""
        return Layout(tuple(self.axes[axis] for axis in order))

    def without(self, axes: set[int]) -> "Layout":
        """Return the layout of a mean over axes."""
        return Layout(tuple(axis for n, axis in enumerate(self.axes) if n not in axes))

    def feature_order(self) -> Tensor | None:
        """Return where the node's values, flattened, are in the last axis; None for in order."""
        factors = self.axes[-1]
        order = sorted(range(len(factors)), key=lambda n: (factors[n].axis, -factors[n].stride))
        if order == list(range(len(factors))):
            return None
        sizes = [factor.size for factor in factors]
        return torch.arange(math.prod(sizes)).reshape(sizes).permute(order).flatten()


def _long(axis: Axis) -> Axis:
    """Return an axis without its factors of size 1, except time."""
    return tuple(factor for factor in axis if factor.size > 1 or factor.axis == TIME)


def _merged(axis: list[Factor]) -> Axis:
    """Return an axis with neighbouring factors of the same node axis merged."""
    merged: list[Factor] = []
    for factor in axis:
        last = merged[-1] if merged else None
        if last and last.axis == factor.axis and last.stride == factor.stride * factor.size:
            merged[-1] = Factor(factor.axis, last.size * factor.size, factor.stride)
        else:
            merged.append(factor)
    return tuple(merged)
