"""Operators that add or end the time axis."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from torch import Tensor

from lbq.carries import active_carries
from lbq.graph.operators.operator_base import Interval, Operator, Value, check_alike, require
from lbq.graph.operators.rounding import Rounding
from lbq.ranges import Range


class Repeat(Operator):
    """Repeats the current of a static input at every timestep.

    Args:
        timesteps: how often (T).
    """

    op = "repeat"
    has_bound = False
    timesteps: Annotated[int, Range(1)]

    def __call__(self, current: Tensor) -> Tensor:
        """Repeat, without a copy."""
        carries = active_carries()
        if carries is not None:
            return carries.repeat(current)
        return current.unsqueeze(0).expand(self.timesteps, *[-1] * current.dim())

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Add the time axis."""
        value = check_alike(inputs, levels=False)
        require(not value.has_time, "signal", "it takes one instant, and repeats what has time")
        steps = self.timesteps
        require(
            steps == timesteps,
            "timesteps",
            f"it repeats {steps} times in a network of {timesteps} timesteps",
        )
        return replace(value, has_time=True)

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Keep the interval."""
        return None, inputs[0]


class Readout(Operator):
    """The output: currents averaged over time, or in integers their sum.

    Args:
        over_time: "mean", "sum" (integers), or "none" to leave the sequence as it is.
    """

    op = "readout"
    over_time: Literal["mean", "sum", "none"]

    def __call__(self, currents: Tensor) -> Tensor:
        """Return ``[B, classes]``, or ``[T, B, classes]``."""
        if self.over_time == "mean":
            return currents.mean(0)
        return currents.sum(0, dtype=currents.dtype) if self.over_time == "sum" else currents

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """End the time axis, or keep what it reads."""
        value = check_alike(inputs, levels=False)
        keeps = self.over_time == "none"
        require(value.has_time or keeps, "signal", "it takes a sequence, and reads one instant")
        return replace(value, has_time=value.has_time and keeps)

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Multiply by the number of timesteps that are added."""
        outer = inputs[0].times(timesteps if self.over_time == "sum" else 1)
        return outer.with_zero(), outer

    def to_integer(self, rounding: Rounding) -> "Readout":
        """Add instead of taking the mean, which is no integer."""
        return Readout("none" if self.over_time == "none" else "sum")
