"""Express the axes of a tensor of the trained network by the axes of a node's output.

The output of a node is ``[T, B, C, *space]``, or ``[B, C, *space]`` without time. A reshape or a
permutation in the trained network only changes how these axes are read. It adds no node: each axis
of a tensor is an ordered product of *factors* of the node's axes.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from lbq.errors import LoweringError

TIME, BATCH, CHANNELS = -2, -1, 0
"""Numbers of the axes of a node's output; the spatial axes are 1, 2, ..."""
_NAMES = {TIME: "time", BATCH: "the batch"}


class LayoutError(LoweringError):
    """The axes of a tensor are not products of factors of a node's axes."""


@dataclass(frozen=True)
class Factor:
    """A factor of an axis of a node's output: index // stride % size along that axis."""

    axis: int
    size: int
    stride: int = 1


Axis = tuple[Factor, ...]
"""Factors of an axis of a tensor, outermost first; only a factor of time may have size 1."""


@dataclass(frozen=True)
class Arrangement:
    """A new order of a node's values: the arguments of :class:`lbq.graph.operators.Rearrange`."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    layout: "Layout"
    """Layout of the tensor on the node with the new order."""
    is_same: bool
    """Whether order and shape stay as they are."""

    def moved(self, values: Tensor) -> Tensor:
        """Return values of the old node, ``[C, *space]``, in the new order."""
        return values.reshape(self.sizes).permute(self.order).reshape(self.layout.node)


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor, outermost first, on a node of shape ``node``, ``(C, *space)``."""

    axes: tuple[Axis, ...]
    node: tuple[int, ...]

    @classmethod
    def of_node(cls, node: Sequence[int], *, batch: int, timesteps: int | None = None) -> "Layout":
        """Return the layout of a node's output itself."""
        time = () if timesteps is None else ((Factor(TIME, timesteps),),)
        return cls((*time, (Factor(BATCH, batch),), *_own_axes(node)), tuple(node))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        return tuple(math.prod(factor.size for factor in axis) for axis in self.axes)

    @property
    def has_time(self) -> bool:
        """Whether the tensor has a time axis, which may be merged with others."""
        return any(factor.axis == TIME for axis in self.axes for factor in axis)

    @property
    def is_sequence(self) -> bool:
        """Whether the tensor is ``[T, B, ...]``."""
        axes = [[factor.axis for factor in axis] for axis in self.axes[:2]]
        return axes == [[TIME], [BATCH]]

    @property
    def is_static(self) -> bool:
        """Whether the tensor is ``[B, ...]``, or ``[1, B, ...]``, without time."""
        first = 1 if self.axes and not self.axes[0] else 0
        batch = [factor.axis for factor in self.axes[first]] if len(self.axes) > first else []
        return not self.has_time and batch == [BATCH]

    def content(self, *axes: int) -> Axis:
        """Return the factors of axes of the tensor, without those of time and batch."""
        return tuple(factor for axis in axes for factor in self.axes[axis] if factor.axis >= 0)

    @property
    def first_own(self) -> int:
        """Return the first axis of the tensor behind time and batch."""
        own = [n for n, axis in enumerate(self.axes) if any(factor.axis < 0 for factor in axis)]
        return max(own, default=-1) + 1

    def is_whole(self, axis: int, own: int = CHANNELS) -> bool:
        """Whether an axis of the tensor is an axis of the node, by default the channels."""
        size = self.node[own]
        return self.axes[axis] == ((Factor(own, size),) if size > 1 else ())

    def reshaped(self, shape: Sequence[int]) -> "Layout":
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
        if waiting:  # time of one step
            axes[-1].extend(waiting)
        return replace(self, axes=tuple(_merged(axis) for axis in axes))

    def _mixed(self, shape: Sequence[int], why: str = "mixes axes") -> LayoutError:
        return LayoutError(f"a reshape of {list(self.shape)} to {list(shape)} {why}")

    def permuted(self, order: Sequence[int]) -> "Layout":
        """Return the layout with its axes in another order."""
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def without(self, axes: set[int]) -> "Layout":
        """Return the layout without some axes."""
        return replace(self, axes=tuple(a for n, a in enumerate(self.axes) if n not in axes))

    def resized(self, axis: int, size: int, own: int = CHANNELS) -> "Layout":
        """Return the layout after a change of the size of a whole axis, by default the channels."""
        new = (Factor(own, size),) if size > 1 else ()
        node = (*self.node[:own], size, *self.node[own + 1 :])
        return Layout(tuple(new if n == axis else a for n, a in enumerate(self.axes)), node)

    def with_node(self, node: Sequence[int], *, first: int) -> "Layout":
        """Return the layout with the axes of a node from axis ``first`` on."""
        return Layout((*self.axes[:first], *_own_axes(node)), tuple(node))

    def arranged(self, groups: Sequence[Axis]) -> Arrangement:
        """Return the arrangement that puts the node's values into another order.

        Args:
            groups: for each axis of the new node, its factors of the old node; every factor once.
        """
        factors = sorted(
            (factor for axis in self.axes for factor in axis if factor.axis >= 0),
            key=lambda factor: (factor.axis, -factor.stride),
        )
        order = tuple(factors.index(factor) for group in groups for factor in group)
        assert sorted(order) == list(range(len(factors)))
        node = tuple(math.prod(factor.size for factor in group) for group in groups)
        places: dict[Factor, Factor] = {}
        for axis, group in enumerate(groups):
            stride = node[axis]
            for factor in group:
                stride //= factor.size
                places[factor] = Factor(axis, factor.size, stride)
        axes = tuple(_merged([places.get(factor, factor) for factor in axis]) for axis in self.axes)
        return Arrangement(
            sizes=tuple(factor.size for factor in factors) or (1,),
            order=order or (0,),
            layout=Layout(axes, node),
            is_same=order == tuple(range(len(order))) and node == self.node,
        )

    def arranged_like(self, other: "Layout") -> Arrangement | None:
        """Return the arrangement that gives the node the order and shape of ``other``'s node.

        Both tensors have the same shape. None if the axes of the other node are not products of
        factors of this one.
        """
        finest = [factor for axis in other.axes for factor in axis]
        try:
            fine = self.reshaped([factor.size for factor in finest])
        except LayoutError:
            return None
        for factor, part in zip(finest, fine.axes, strict=True):
            if (part != (factor,)) if factor.axis < 0 else any(mine.axis < 0 for mine in part):
                return None
        groups: list[Axis] = []
        for own in range(len(other.node)):
            mine = [n for n, factor in enumerate(finest) if factor.axis == own]
            mine.sort(key=lambda n: -finest[n].stride)
            groups.append(tuple(factor for n in mine for factor in fine.axes[n]))
        made = fine.arranged(groups)
        return replace(made, layout=made.layout.reshaped(self.shape))

    def to_node(self, values: Tensor) -> Tensor:
        """Reorder values from the tensor's axes behind T and B to the node's axes.

        Args:
            values: may have any leading axes: ``[T, B, ...]`` becomes ``[T, B, *node]``.
        """
        axes = [axis for axis in self.axes if not axis or axis[0].axis >= 0]
        factors = [factor for axis in axes for factor in axis]
        order = sorted(range(len(factors)), key=lambda n: (factors[n].axis, -factors[n].stride))
        first = values.dim() - len(axes)
        split = values.reshape([*values.shape[:first], *(factor.size for factor in factors)])
        moved = split.permute([*range(first), *(first + n for n in order)])
        return moved.reshape([*values.shape[:first], *self.node])


def _own_axes(node: Sequence[int]) -> tuple[Axis, ...]:
    return tuple((Factor(axis, size),) if size > 1 else () for axis, size in enumerate(node))


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
