"""What every operator of a lowered network has: its rules (shape, bound, integers) and settings.

Values between nodes are *levels* (integers from 0 on, or signed in a real-valued network) or
*currents* (real numbers, or int32 in an integer network), ``[T, B, *shape]`` or ``[B, *shape]``
with channels first in the shape. Steps were absorbed into the weights.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, dataclass_transform

import numpy as np
from torch import Tensor

from lbq.errors import BoundError, LoweringError
from lbq.graph.operators.rounding import Rounding, unit_of_constant
from lbq.ranges import Range

PIXEL_MAX = 255
"""The largest pixel or event count that enters an integer network."""
MAX_RANK = 3
"""Axes of a value: channels and at most two others."""
SIDE = 2**16
"""Largest stride, padding, dilation, window or number of groups in a bundle."""
Positive = Annotated[int, Range(1, SIDE)]
NotNegative = Annotated[int, Range(0, SIDE)]
PerAxis = Annotated[tuple[Positive, ...], Range(1, 2)]
"""One number for every spatial axis."""
PaddingPerAxis = Annotated[tuple[NotNegative, ...], Range(1, 2)]
WIDTHS = (16, 32)
"""Allowed bits of accumulators and membranes."""


class GraphError(LoweringError):
    """A node cannot read what enters it.

    Args:
        rule: name of the rule that it violates (docs/deploy/bundle-format.md).
        message: what came and what was expected; the caller adds the path of the node.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def require(holds: bool, rule: str, message: str) -> None:
    """Raise :class:`GraphError` unless a rule holds."""
    if not holds:
        raise GraphError(rule, message)


@dataclass(frozen=True, kw_only=True)
class Value:
    """The output of a node."""

    shape: tuple[int, ...]
    """Of one sample at one timestep, channels first."""
    has_time: bool
    """Whether it has a time axis, ``[T, B, *shape]``."""
    max_level: int | None
    """Largest size of levels, or of sums and products of them; None for currents."""

    @property
    def size(self) -> int:
        """Number of values of one sample at one timestep."""
        return math.prod(self.shape)


class Interval(NamedTuple):
    """Smallest and largest value per channel, ``[C]`` or ``[1]``: arrays of Python integers."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, low: int, high: int) -> "Interval":
        """Return the interval of all channels."""
        return cls(np.array([low], dtype=object), np.array([high], dtype=object))

    def plus(self, other: "Interval") -> "Interval":
        """Return the interval of the sum of both."""
        return Interval(self.low + other.low, self.high + other.high)

    def times(self, factor: int) -> "Interval":
        """Multiply by a number that is not negative."""
        return Interval(self.low * factor, self.high * factor)

    def with_zero(self) -> "Interval":
        """Include zero and with it every partial sum."""
        return Interval(np.minimum(self.low, 0), np.maximum(self.high, 0))

    def extremes(self) -> tuple[int, int]:
        """Return the smallest and largest value over all channels."""
        return int(self.low.min()), int(self.high.max())


def hull(parts: Sequence[Interval]) -> Interval:
    """Return the smallest interval that holds all of them, per channel."""
    low, high = parts[0]
    for part in parts[1:]:
        low, high = np.minimum(low, part.low), np.maximum(high, part.high)
    return Interval(low, high)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The range of all integers of one node."""

    path: str
    low: int
    high: int

    @property
    def bits(self) -> int:
        """Return the narrowest width that holds the range; raise if none does."""
        for bits in WIDTHS:
            if -(2 ** (bits - 1)) <= self.low and self.high < 2 ** (bits - 1):
                return bits
        raise BoundError(
            f"{self.path} can reach {self.low}..{self.high}, which no {WIDTHS[-1]}-bit integer "
            f"holds; use fewer weight bits or fewer timesteps"
        )


@dataclass(frozen=True, kw_only=True)
class Role:
    """What a field that holds a tensor is annotated with."""

    integer: tuple[str, ...] = ()
    """Types that it may have in an integer network; empty if that has no such tensor."""
    is_optional: bool = False


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, eq=False, repr=False)
class Operator:
    """Base of all operators; calling one computes its output in torch.

    A class with a name is a frozen dataclass of the fields that it declares itself: the tensors,
    marked by their :class:`Role`, and the settings, both in the order of a bundle.
    """

    op: ClassVar[str]
    """Its name in bundles."""
    num_inputs: ClassVar[tuple[int, int]] = (1, 1)
    """Fewest and most nodes that it reads."""
    has_bound: ClassVar[bool] = True
    """Whether it computes integers; otherwise it moves, selects or pools those of others."""
    networks: ClassVar[tuple[bool, ...]] = (False, True)
    """In which networks it may be: of real numbers (False), of integers (True)."""
    counted_as: ClassVar[Literal["neuron", "synapse", "identity", "product", "move", ""]] = ""
    """How it is counted. An identity adds the levels themselves. Moves and pools of levels belong
    to the operator that reads them. "" costs nothing."""
    takes_bytes: ClassVar[bool] = False
    """Whether it may read the input of an integer network, which are bytes."""
    has_own_units: ClassVar[bool] = False
    """Whether its currents have units of their own; otherwise those of the currents it reads."""
    __call__: ClassVar[Callable[..., Tensor]]

    def __init_subclass__(cls) -> None:
        if "op" in vars(cls):
            dataclass(frozen=True, eq=False, repr=False)(cls)

    @classmethod
    @cache
    def tensors(cls) -> Mapping[str, Role]:
        """Return the fields that hold tensors."""
        marks = {field.name: getattr(field.type, "__metadata__", ()) for field in fields(cls)}
        return {
            name: mark for name, found in marks.items() for mark in found if isinstance(mark, Role)
        }

    @classmethod
    @cache
    def settings(cls) -> Mapping[str, Any]:
        """Return the other fields, with their types."""
        return {field.name: field.type for field in fields(cls) if field.name not in cls.tensors()}

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Operator":
        """Return the same operator with every tensor changed."""
        given = {role: getattr(self, role) for role in self.tensors()}
        return replace(self, **{r: change(each) for r, each in given.items() if each is not None})

    def __repr__(self) -> str:
        """Show the settings, and the shapes of the tensors."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return f"{type(self).__name__}({', '.join(f'{k}={_shown(v)}' for k, v in given.items())})"

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Return what it gives for these inputs; raise :class:`GraphError` if it cannot read them.

        Args:
            inputs: what it reads.
            timesteps: of the network.
        """
        raise NotImplementedError

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Return the interval of all integers that it computes, and that of its output.

        The first contains every partial sum, in any order; it is None without ``has_bound``.

        Args:
            inputs: intervals of what it reads.
            values: what it reads.
            timesteps: of the network.
        """
        raise NotImplementedError

    def channels(self, entering: Sequence[np.ndarray], values: Sequence[Value]) -> np.ndarray:
        """Return for each channel of the output the entries of those that it is made of.

        An array ``[C, n]``; ``[1, n]`` if all channels of the output are made of the same.

        Args:
            entering: of each input, one entry per channel.
            values: the inputs.
        """
        return np.stack(entering, 1)

    def why_real(self, *, reads_input: bool) -> str:
        """Return why it has no integer form; empty if it has one.

        Args:
            reads_input: whether it reads the input of the network, or moved values of it.
        """
        tensors = (getattr(self, role) for role in self.tensors())
        if not all(tensor is None or bool(tensor.isfinite().all()) for tensor in tensors):
            return "it holds a NaN or an infinity"
        is_refused = reads_input and not self.takes_bytes
        return "it reads the input without a synapse" if is_refused else ""

    def least_unit(self) -> Tensor:
        """Return the smallest unit, ``[C]`` or ``[1]``, in which its constants fit integers."""
        return unit_of_constant(None)

    def to_integer(self, rounding: Rounding) -> "Operator":
        """Return the operator in integers; itself if it has no numbers of its own."""
        return self


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def check_alike(inputs: Sequence[Value], *, levels: bool | None = None) -> Value:
    """Raise unless all inputs have one shape and time axis, and are levels or currents as asked.

    Args:
        inputs: what a node reads.
        levels: whether they must be levels (True) or currents (False); None for either.
    """
    first = inputs[0]
    for value in inputs:
        is_level = value.max_level is not None
        if levels is not None:
            takes, reads = ("levels", "currents") if levels else ("currents", "levels")
            require(is_level == levels, "signal", f"it takes {takes}, it reads {reads}")
        require(
            (value.shape, value.has_time) == (first.shape, first.has_time),
            "shape",
            f"it reads shapes {first.shape} and {value.shape}, or some without time",
        )
    return first


def check_time(value: Value, has_time: bool) -> None:
    """Raise if a node's ``has_time`` contradicts what it reads."""
    require(value.has_time == has_time, "signal", "has_time contradicts what it reads")


def window_positions(
    space: Sequence[int],
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Return how many positions a window has along each spatial axis."""
    require(
        len(space) == len(kernel) == len(stride) == len(padding) == len(dilation),
        "shape",
        f"a window of {tuple(kernel)} with stride {tuple(stride)}, padding {tuple(padding)} and "
        f"dilation {tuple(dilation)} slides over {tuple(space)}",
    )
    axes = zip(space, kernel, stride, padding, dilation, strict=True)
    counts = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)
    require(min(counts) >= 1, "shape", f"its window is wider than {tuple(space)}")
    return counts
