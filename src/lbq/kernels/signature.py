"""What every implementation of the multi-step neuron takes and returns."""

import inspect
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch.autograd import Function

from lbq.functional.membrane import check_reset_mode
from lbq.functional.planes import check_max_level
from lbq.types import Bursts, Carry, Levels, ResetMode


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """The discrete choices of a burst neuron: nothing here has a gradient."""

    max_level: int
    """The largest level (N_max), 1..255."""
    lo: float
    """Where the surrogate's plateau begins, in steps."""
    hi: float
    """Where the surrogate's plateau ends, in steps."""
    reset_mode: ResetMode = "event"
    """What is subtracted after emission: one step, one step per level, or nothing."""
    detach_reset: bool = False
    """Keep the step inside the reset out of the gradient."""
    detach_carry: bool = False
    """Stop the gradient between timesteps (no back-propagation through time)."""

    def __post_init__(self) -> None:
        check_max_level(self.max_level)
        check_reset_mode(self.reset_mode)


class ScanOutput(NamedTuple):
    """What a burst neuron answers to a sequence."""

    bursts: Bursts
    """step * level, in the currents' dtype."""
    levels: Levels
    """The integer levels, uint8, without gradient."""
    carry: Carry
    """The state after the last timestep, to be passed to the next call of a stream."""


F = TypeVar("F", bound=type[Function])


def with_known_signature(function: F) -> F:
    """Note down the signature of an autograd function's forward.

    torch looks it up at every call, which costs a small network more than the neuron itself.
    """
    function.forward.__signature__ = inspect.signature(function.forward)  # pyright: ignore[reportFunctionMemberAccess]
    return function
