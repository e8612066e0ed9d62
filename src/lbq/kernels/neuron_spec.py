"""``NeuronSpec``: a neuron as data, for all implementations of its scan.

With V the carry, U the membrane, I the current, at every timestep:

    U = decay V + I
    S = values[number of thresholds with U >= threshold], with its sign on the negative side
    output = scale S
    V = U - amount sign(S) ("event"), U - amount S ("level"), U ("none"), 0 where S != 0 ("zero")

A uniform neuron has thresholds at multiples of its step, which is its scale too, and everything
else is in steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from lbq.errors import ParameterError, ShapeError
from lbq.functional.planes import check_max_level
from lbq.functional.quantize import next_above
from lbq.functional.surrogate import WindowShape
from lbq.types import Currents, NeuronReset, Step

RESETS: tuple[NeuronReset, ...] = ("event", "level", "none", "zero")
"""As ``lbq_reset_mode`` in ``lbq.h`` numbers them."""
MAX_SIGNED = 127
"""The largest level of a neuron with negative ones, which are int8."""


@runtime_checkable
class StepModule(Protocol):
    """A step that depends on the currents, such as :class:`lbq.LearnedStep`."""

    def for_currents(self, currents: Currents, *, max_level: int) -> Step:
        """Return the step shaped to broadcast against one instant of ``currents``."""
        ...


Coefficient = float | Tensor
"""One number, one per channel ``[C]``, or a tensor that broadcasts against one instant."""


@dataclass(frozen=True, eq=False)
class Plateau:
    """A slope of 1 on ``[lo, hi]`` and exponential tails outside (Eq. 9).

    In steps for a uniform neuron. With a negative side, for the size of the membrane; the slope at
    zero is then zero, unless ``lo`` is negative.

    Args:
        lo: where the plateau begins.
        hi: where it ends.
        tail: strength of the tails (lambda); None for a box.

    Example:
        >>> spec = lbq.NeuronSpec(step=0.5, max_level=4, surrogate=lbq.Plateau(1, 4, tail=0.5))
        >>> spec.values_above
        (1, 2, 3, 4)
    """

    lo: float
    hi: float
    tail: Tensor | float | None = None

    def __post_init__(self) -> None:
        if not self.lo <= self.hi:
            raise ParameterError(f"a plateau needs lo <= hi, got [{self.lo}, {self.hi}]")
        if self.lo == self.hi and self.tail is None:
            raise ParameterError(
                f"the plateau [{self.lo}, {self.hi}] is empty and has no tails, so no gradient "
                f"flows; move its ends apart or give it a tail"
            )


@dataclass(frozen=True)
class Window:
    """A slope around every threshold, of area 1 each; a threshold then has a gradient too.

    In steps for a uniform neuron.

    Args:
        shape: "box", "triangle", "arctangent", "sigmoid" or "gaussian".
        width: of a box, its width; of a triangle, half of its base; of an arctangent and a sigmoid,
            the inverse of SpikingJelly's alpha; of a Gaussian, its standard deviation.

    Example:
        >>> lbq.NeuronSpec(thresholds=(1.0, 2.0), surrogate=lbq.Window("box", width=0.5)).largest
        2
    """

    shape: WindowShape = "triangle"
    width: float = 1.0

    def __post_init__(self) -> None:
        if self.shape not in get_args(WindowShape):
            names = ", ".join(f'"{name}"' for name in get_args(WindowShape))
            raise ParameterError(f"the shape of a window must be one of {names}, got {self.shape}")
        if not 0 < self.width < float("inf"):
            raise ParameterError(f"a window needs a positive width, got {self.width}")


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuronSpec:
    """What a neuron computes, as data; :meth:`lbq.Neuron.spec` returns it.

    Either ``step`` and ``max_level`` (uniform: thresholds at 1, 2, .. steps, output ``step *
    level``) or ``thresholds``. A coefficient is a number, a tensor of one number, or one number per
    channel ``[C]``; tensors may be computed from parameters, to which gradients flow.

    Example:
        >>> class Coarse(lbq.Neuron):  # levels 0, 1, 2 and 4 at thresholds that are learned
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.gaps = torch.nn.Parameter(torch.zeros(3))
        ...
        ...     def spec(self):
        ...         thresholds = self.gaps.exp().cumsum(0)
        ...         return lbq.NeuronSpec(thresholds=thresholds, values=(1, 2, 4), reset="zero")
        >>> Coarse()(torch.tensor([0.5, 1.5, 2.5, 3.5]).reshape(1, 1, 4)).detach()
        tensor([[[0., 1., 2., 4.]]])
    """

    step: Coefficient | StepModule | None = None
    """Spacing of uniform levels and scale of the output (gamma)."""
    max_level: int | None = None
    """How many thresholds a uniform neuron has on each side."""
    thresholds: Tensor | Sequence[float] | None = None
    """Where the level rises: rising numbers ``[N]``, or ``[N, C]`` for each channel."""
    is_strict: bool | tuple[bool, ...] = False
    """Whether the membrane must exceed thresholds and not reach them; one for all, or each."""
    values: tuple[int, ...] | None = None
    """The level from each threshold on; 1, 2, .. by default."""
    negative: Literal["none", "mirrored"] | Tensor | Sequence[float] = "none"
    """Thresholds of negative levels, as sizes: those of the positive ones if mirrored."""
    negative_values: tuple[int, ...] | None = None
    """The size of the level from each negative threshold on; 1, 2, .. by default."""
    scale: Coefficient | StepModule = 1.0
    """What multiplies the level; of a uniform neuron its step."""
    decay: Coefficient = 0.5
    """Share of the carry that survives a timestep (beta); it may exceed 1."""
    reset: NeuronReset = "event"
    """What happens to the membrane after emission."""
    amount: Coefficient = 1.0
    """What "event" and "level" remove for one event or for one level; in steps if uniform."""
    initial: Coefficient = 0.0
    """The carry at the start of a sequence; in steps if uniform."""
    after_decay: bool = False
    """Whether the amount is removed in the next timestep, after the decay (Eq. 1)."""
    surrogate: Plateau | Window = Window()
    """The slope of the soft level, for the gradient."""
    detach_reset: bool = False
    """Keep the step inside the reset out of the gradient."""
    detach_carry: bool = False
    """Stop the gradient between timesteps."""
    resets_with_gradient: bool = False
    """Whether the reset passes the slope of the soft level on; levels above 1 only for "level"."""

    def __post_init__(self) -> None:
        if (self.step is None) == (self.thresholds is None):
            raise ParameterError(
                "a neuron is declared by its step and max_level (uniform levels) or by its "
                f"thresholds, got {'neither' if self.step is None else 'both'}"
            )
        if self.is_uniform:
            self._check_uniform()
        if isinstance(self.negative, str) and self.negative not in ("none", "mirrored"):
            raise ParameterError(
                f'negative must be "none", "mirrored" or thresholds, got {self.negative!r}'
            )
        if not isinstance(self.surrogate, Plateau | Window):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ParameterError(
                f"the surrogate must be a Plateau or a Window, got {self.surrogate!r}"
            )
        num_positive, num_negative = self._counts()
        if min(num_positive, num_negative or 1) < 1:
            raise ParameterError("a neuron needs at least one threshold, got none")
        _check_rising("thresholds", self.thresholds)
        _check_rising("negative thresholds", self.negative)
        _check_values("values", self.values, num_positive)
        _check_values("negative_values", self.negative_values, num_negative)
        if self.negative_values is not None and isinstance(self.negative, str):
            raise ParameterError(
                "negative_values need thresholds of their own, negative=[...]; mirrored levels "
                "have the values of the positive ones"
            )
        check_max_level(max(self.values_above[-1], *self.values_below, 1))
        if self.is_signed and max(self.values_above[-1], self.values_below[-1]) > MAX_SIGNED:
            raise ParameterError(
                f"a neuron with negative levels has levels of at most {MAX_SIGNED}, got "
                f"{max(self.values_above[-1], self.values_below[-1])}"
            )
        if isinstance(self.is_strict, tuple) and len(self.is_strict) != num_positive:
            raise ParameterError(
                f"is_strict needs one entry for each of {num_positive} thresholds, got "
                f"{len(self.is_strict)}"
            )
        self._check_reset()

    def _check_uniform(self) -> None:
        if self.max_level is None or check_max_level(self.max_level) < 1:
            raise ParameterError("a uniform neuron needs max_level, the number of its steps")
        if self.is_strict or not isinstance(self.negative, str) or not _is_one(self.scale):
            raise ParameterError(
                "a uniform neuron reaches its thresholds, has the same ones on both sides, and its "
                "step is its scale; declare thresholds= for is_strict, a scale, or negative "
                "thresholds of its own"
            )

    def _check_reset(self) -> None:
        if self.reset not in RESETS:
            raise ParameterError(
                f'reset must be "event", "level", "none" or "zero", got {self.reset!r}'
            )
        if self.after_decay and (self.reset not in ("event", "level") or self.resets_with_gradient):
            raise ParameterError(
                'after_decay removes an amount in the next timestep, so it needs reset="event" or '
                f'"level" without resets_with_gradient, got reset={self.reset!r}'
            )
        if self.resets_with_gradient and self.reset in ("event", "zero") and self.largest > 1:
            raise ParameterError(
                f"resets_with_gradient has no slope for reset={self.reset!r} and levels up to "
                f'{self.largest}; use reset="level", or a single threshold on each side'
            )

    @property
    def is_uniform(self) -> bool:
        """Whether thresholds are multiples of a step."""
        return self.step is not None

    @property
    def is_signed(self) -> bool:
        """Whether there are negative levels."""
        return not (isinstance(self.negative, str) and self.negative == "none")

    @property
    def largest(self) -> int:
        """The largest size of a level (N_max)."""
        return max(self.values_above[-1], *self.values_below, 1)

    @property
    def values_above(self) -> tuple[int, ...]:
        """The level from each positive threshold on."""
        return self.values or tuple(range(1, self._counts()[0] + 1))

    @property
    def values_below(self) -> tuple[int, ...]:
        """The size of the level from each negative threshold on; empty without a negative side."""
        if isinstance(self.negative, str):
            return self.values_above if self.is_signed else ()
        return self.negative_values or tuple(range(1, len(self.negative) + 1))

    def _counts(self) -> tuple[int, int]:
        """Return the number of thresholds on the positive and on the negative side."""
        count = len(self.thresholds) if self.thresholds is not None else self.max_level or 0
        if isinstance(self.negative, str):
            return count, count if self.is_signed else 0
        return count, len(self.negative)

    def resolve(self, currents: Currents) -> "ResolvedNeuron":
        """Return the coefficients in the dtype of membranes, shaped for these currents."""
        dtype = torch.promote_types(currents.dtype, torch.float32)

        def shaped(value: Coefficient | StepModule, name: str) -> Tensor:
            if not isinstance(value, float | int | Tensor):
                return value.for_currents(currents, max_level=self.largest).to(dtype)
            if not isinstance(value, Tensor):
                return torch.full((1,), value, dtype=dtype, device=currents.device)
            return _for_channels(value.to(dtype), currents, name)

        scale = shaped(self.scale if self.step is None else self.step, "step or scale")
        amount, initial = shaped(self.amount, "amount"), None
        if not _is_zero(self.initial):
            initial = shaped(self.initial, "initial")
        if self.is_uniform:
            amount = amount * (scale.detach() if self.detach_reset else scale)
            initial = None if initial is None else initial * scale
        tail = self.surrogate.tail if isinstance(self.surrogate, Plateau) else None
        above = self._side(currents, dtype, self.thresholds, self.values_above)
        return ResolvedNeuron(
            spec=self,
            scale=scale,
            decay=shaped(self.decay, "decay"),
            amount=amount,
            tail=None if tail is None else shaped(tail, "tail"),
            initial=initial,
            above=above,
            below=self._side_below(currents, dtype, above),
        )

    def _side_below(self, currents: Currents, dtype: torch.dtype, above: "Side") -> "Side | None":
        if not self.is_signed:
            return None
        if isinstance(self.negative, str):
            return above
        return self._side(currents, dtype, self.negative, self.values_below)

    def _side(
        self,
        currents: Currents,
        dtype: torch.dtype,
        thresholds: Tensor | Sequence[float] | None,
        values: tuple[int, ...],
    ) -> "Side":
        jumps = tuple(b - a for a, b in pairwise((0, *values)))
        if thresholds is None:  # in steps
            counts = torch.arange(1, len(values) + 1, dtype=dtype, device=currents.device)
            return Side(counts.unsqueeze(1), counts.unsqueeze(1), jumps)
        centres = torch.as_tensor(thresholds, device=currents.device).to(dtype)
        if centres.dim() == 1:
            centres = centres.unsqueeze(1)
        elif centres.dim() == 2:
            channels = [_for_channels(row, currents, "thresholds") for row in centres.unbind(0)]
            centres = torch.stack(channels)
        edges = centres.detach()
        if self.is_strict is True:
            edges = next_above(edges)
        elif isinstance(self.is_strict, tuple) and len(self.is_strict) == len(edges):
            strict = torch.tensor(self.is_strict, device=edges.device)
            edges = torch.where(
                strict.reshape(-1, *[1] * (edges.dim() - 1)), next_above(edges), edges
            )
        return Side(centres, edges, jumps)


class Side(NamedTuple):
    """The thresholds of one side; in steps for a uniform neuron."""

    centres: Tensor
    """Thresholds ``[N, ...]``; each is one number, or broadcasts against the neurons."""
    edges: Tensor
    """The smallest floats at which they are reached; without gradient."""
    jumps: tuple[int, ...]
    """How much the level grows at each."""


class ResolvedNeuron(NamedTuple):
    """A declaration for given currents; coefficients are ``[1]`` or broadcast against neurons."""

    spec: NeuronSpec
    scale: Tensor
    """What multiplies the level: the step of a uniform neuron."""
    decay: Tensor
    amount: Tensor
    """In units of the membrane."""
    tail: Tensor | None
    initial: Tensor | None
    above: Side
    below: Side | None


def _for_channels(value: Tensor, currents: Currents, name: str) -> Tensor:
    """Shape one number, or one per channel, to broadcast against one instant of the neurons."""
    if value.numel() == 1:
        return value.reshape(1)
    neurons = currents.shape[2:]
    if value.dim() == 1 and len(neurons) > 0 and value.numel() == neurons[0]:
        return value.reshape(-1, *[1] * (len(neurons) - 1))  # [C, 1, 1]
    if value.dim() != 1 and _broadcasts(value.shape, currents.shape[1:]):
        return value
    raise ShapeError(
        f"the {name} of a neuron has shape {tuple(value.shape)}, which does not fit currents of "
        f"shape {tuple(currents.shape)}; use one number, or one for each channel (axis 2)"
    )


def _broadcasts(shape: torch.Size, instant: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, instant) == instant
    except RuntimeError:
        return False


def _check_rising(name: str, thresholds: Tensor | Sequence[float] | str | None) -> None:
    """Raise for numbers that fall; those of a tensor are not read, to avoid a synchronisation."""
    if thresholds is None or isinstance(thresholds, Tensor | str):
        return
    if any(b < a for a, b in pairwise(thresholds)):
        raise ParameterError(f"{name} must rise, got {tuple(thresholds)}")


def _check_values(name: str, values: tuple[int, ...] | None, count: int) -> None:
    if values is None:
        return
    if len(values) != count:
        raise ParameterError(
            f"{name} needs one level for each of {count} thresholds, got {len(values)}: {values}"
        )
    if values[0] < 1 or any(b < a for a, b in pairwise(values)):
        raise ParameterError(f"{name} must be integers from 1 on that do not fall, got {values}")


def _is_zero(value: Coefficient) -> bool:
    return not isinstance(value, Tensor) and value == 0


def _is_one(value: object) -> bool:
    return isinstance(value, float | int) and value == 1
