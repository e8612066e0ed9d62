"""Neurons of lowered networks: currents in, integer levels out."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lbq.carries import active_carries
from lbq.functional.membrane import integrate, lif_membrane, steps_removed
from lbq.functional.planes import check_max_level
from lbq.functional.quantize import count_thresholds
from lbq.graph.operators.operator_base import (
    WIDTHS,
    Interval,
    NotNegative,
    Operator,
    Role,
    Value,
    check_alike,
    hull,
    require,
)
from lbq.graph.operators.rounding import Rounding, decay_as_fraction, unit_of_constant
from lbq.graph.operators.synapse import per_channel
from lbq.ranges import Range
from lbq.types import ResetMode

MAX_LEVEL = 255
"""Levels are bytes."""
_MAX_SIGNED = 127
"""Signed levels are int8."""
_UNBOUNDED = 2**62
_MAX_THRESHOLD = 2**30
LEAST_SHIFT = 8
"""Decays are multiples of 1 / 2**8, or of less where that is too coarse."""

NodeReset = Literal[ResetMode, "zero"]
"""As a neuron's reset mode; "zero" sets the membrane of a neuron that emitted to zero."""
RESETS: tuple[NodeReset, ...] = get_args(NodeReset)
"""By their numbers, those of ``lbq_reset_mode`` in ``lbq.h``."""


class LevelNeuron(Operator):
    """Base of the neurons: currents in, integer levels out.

    A level is the number of thresholds that the membrane has reached (Eq. 3).
    """

    counted_as = "neuron"
    thresholds: Tensor
    reset_amount: Tensor
    reset: NodeReset
    resets_after_decay: bool
    is_signed: bool = False
    per_threshold_state: bool = False
    mixture: Tensor | None = None

    def __post_init__(self) -> None:
        check_max_level(self.max_level)

    @property
    def max_level(self) -> int:
        """The largest level (N_max)."""
        return len(self.thresholds)

    @property
    def carry_share(self) -> float:
        """Share of the carry that survives a timestep (beta)."""
        raise NotImplementedError

    @property
    def needs_whole_sequence(self) -> bool:
        """Whether a timestep depends on later ones, so that the neuron cannot be streamed."""
        return self.mixture is not None

    def __call__(self, currents: Tensor) -> Tensor:
        """Return the levels of a whole sequence, from rest."""
        levels, _ = self.stream(currents, None)
        return levels

    def stream(self, currents: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the levels of a part of a sequence and its last carry; None starts from rest."""
        carries = active_carries()
        if carries is not None and carry is None:  # the network is run by lbq.stream
            return carries.advance(self, currents)
        if self.mixture is not None:
            shaped = self.mixture.reshape(*self.mixture.shape, *[1] * (currents.dim() - 1))
            currents = torch.stack([(row * currents).sum(0) for row in shaped.unbind(0)])
        if carry is None:
            rest = torch.zeros_like(currents[0])
            carry = torch.stack([rest] * self.max_level) if self.per_threshold_state else rest
        levels: list[Tensor] = []
        for current in currents.unbind(0):
            level, carry = self.update(carry, current)
            levels.append(level)
        return torch.stack(levels), carry  # [T, B, *n]

    def update(self, carry: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate, count thresholds and reset: one timestep."""
        membrane = self.integrate(carry, current.expand_as(carry))  # [N, B, *n] if it is split
        if self.per_threshold_state:
            thresholds = self.thresholds.reshape(-1, *[1] * current.dim())  # [N, 1, ...]
            spikes = (membrane >= thresholds).to(torch.uint8)
            return spikes.sum(0, dtype=torch.uint8), torch.where(spikes > 0, 0, membrane)
        thresholds = torch.stack(
            [per_channel(threshold, current[:1])[0] for threshold in self.thresholds.unbind(0)]
        )
        size = membrane.abs() if self.is_signed else membrane
        level = count_thresholds(size, thresholds).to(torch.uint8)
        if self.is_signed:
            level = level.to(torch.int8) * membrane.sign().to(torch.int8)
        return level, self._after(membrane, level)

    def integrate(self, carry: Tensor, current: Tensor) -> Tensor:
        """Decay the carry and add the current."""
        raise NotImplementedError

    def _after(self, membrane: Tensor, level: Tensor) -> Tensor:
        if self.resets_after_decay or self.reset == "none":
            return membrane
        if self.reset == "zero":
            return torch.where(level != 0, torch.zeros_like(membrane), membrane)
        units = steps_removed(level, mode=self.reset).to(membrane.dtype)
        return membrane - per_channel(self.reset_amount, membrane) * units

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Take a sequence of currents; thresholds are of one channel, or of each."""
        first = check_alike(inputs, levels=False)
        require(first.has_time, "signal", "it takes a sequence, and reads an input without time")
        channels = first.shape[:1]
        shapes = tuple(self.thresholds.shape), tuple(self.reset_amount.shape)
        require(
            len(shapes[0]) == 2 and shapes[0][1:] in ((1,), channels),
            "shape",
            f"thresholds of shape {shapes[0]} for {channels[0]} channels",
        )
        require(
            shapes[1] in ((1,), channels),
            "shape",
            f"a reset amount of shape {shapes[1]} for {channels[0]} channels",
        )
        largest = _MAX_SIGNED if self.is_signed else MAX_LEVEL
        require(self.max_level <= largest, "max-level", f"it has {self.max_level} levels")
        self._check_settings(timesteps)
        return Value(shape=first.shape, has_time=True, max_level=self.max_level)

    def _check_settings(self, timesteps: int) -> None:
        """Raise for settings that contradict one another."""
        raise NotImplementedError

    def _check_reset_after_decay(self, is_sound: bool = True) -> None:
        is_sound = is_sound and len(self.thresholds) == 1 and self.reset == "event"
        require(is_sound, "reset", "it resets after its decay: one threshold, one event, no sign")


class RealNeuron(LevelNeuron):
    """Any neuron of this library with its step absorbed.

    The thresholds are the smallest membranes at which the trained neuron's own formula reaches each
    level, so that both agree on every float.

    Args:
        thresholds: thresholds, rising, ``[N, 1]`` or ``[N, C]``; for a signed neuron, of its size.
        decay: share of the carry that survives a timestep, ``[1]``.
        reset_amount: what one unit of reset takes from the membrane, ``[1]`` or ``[C]``.
        mixture: ``[T, T]`` that mixes the currents of all timesteps first; None for none.
        reset: whether emission removes that once, once per level, never, or forgets everything.
        is_signed: whether the level has the membrane's sign.
        resets_after_decay: whether the reset escapes the decay of the next timestep (Eq. 1).
        per_threshold_state: whether every threshold has a membrane of its own.
    """

    op = "level_neuron"
    networks = (False,)
    thresholds: Annotated[Tensor, Role()]
    _: KW_ONLY
    decay: Annotated[Tensor, Role()]
    reset_amount: Annotated[Tensor, Role()]
    mixture: Annotated[Tensor | None, Role(is_optional=True)] = None
    reset: NodeReset
    is_signed: bool = False
    resets_after_decay: bool = False
    per_threshold_state: bool = False

    @property
    def carry_share(self) -> float:
        """The decay."""
        return float(self.decay)

    def integrate(self, carry: Tensor, current: Tensor) -> Tensor:
        """Decay the carry and add the current."""
        if self.resets_after_decay:  # the carry is the last membrane
            spike = count_thresholds(carry, self.thresholds)
            return lif_membrane(
                carry,
                current,
                spike=spike,
                decay=self.decay,
                threshold=self.reset_amount,
                reset=1.0,
            )
        return integrate(carry, current, decay=self.decay)

    def _check_settings(self, timesteps: int) -> None:
        """Raise for settings that contradict one another."""
        require(self.decay.shape == (1,), "shape", f"a decay of shape {tuple(self.decay.shape)}")
        mixture = None if self.mixture is None else tuple(self.mixture.shape)
        require(mixture in (None, (timesteps,) * 2), "shape", f"a mixture of shape {mixture}")
        has_one_channel = self.thresholds.shape[1] == self.reset_amount.numel() == 1
        if self.resets_after_decay:
            is_sound = not self.is_signed and not self.per_threshold_state and has_one_channel
            self._check_reset_after_decay(is_sound)
        if self.per_threshold_state:
            is_sound = self.reset == "zero" and self.thresholds.shape[1] == 1 and not self.is_signed
            require(
                is_sound,
                "reset",
                "it has a state per threshold: it resets to zero, all channels alike",
            )

    def why_real(self, *, reads_input: bool) -> str:
        """Integers have no sign, one membrane and one timestep after the other."""
        reasons = {
            "it emits negative levels": self.is_signed,
            "every level has its own membrane": self.per_threshold_state,
            "it mixes timesteps": self.mixture is not None,
        }
        own = (reason for reason, holds in reasons.items() if holds)
        return super().why_real(reads_input=reads_input) or next(own, "")

    def least_unit(self) -> Tensor:
        """Make the first threshold fit."""
        return unit_of_constant(self.thresholds[0])

    def to_integer(self, rounding: Rounding) -> "IntegerNeuron":
        """Round thresholds up, which is exact for integers."""
        multiplier, shift = decay_as_fraction(self.carry_share, max_shift=LEAST_SHIFT)
        thresholds, amount = (
            tensor.double() / rounding.unit for tensor in (self.thresholds, self.reset_amount)
        )
        return IntegerNeuron(
            thresholds.ceil().clamp(max=_MAX_THRESHOLD).to(torch.int32),
            multiplier=multiplier,
            shift=shift,
            reset_amount=amount.round().clamp(max=_MAX_THRESHOLD).to(torch.int32),
            reset=self.reset,
            resets_after_decay=self.resets_after_decay,
        )


class IntegerNeuron(LevelNeuron):
    """A neuron in int32: thresholds, reset and decay are integers in the unit of its currents.

    The decay is a product and an arithmetic shift, ``(multiplier * carry) >> shift``, which rounds
    down, negative carries too.

    Args:
        thresholds: thresholds, rising, ``[N, C]`` int32.
        multiplier: of the carry.
        shift: bits that the product is shifted by.
        reset_amount: what one unit of reset takes from the membrane, ``[C]`` int32.
        reset: whether emission removes that once, once per level, never, or forgets everything.
        resets_after_decay: whether the reset escapes the decay of the next timestep (Eq. 1).
    """

    op = "integer_neuron"
    networks = (True,)
    thresholds: Annotated[Tensor, Role(integer=("I32",))]
    _: KW_ONLY
    multiplier: NotNegative
    shift: Annotated[int, Range(0, 16)]
    reset_amount: Annotated[Tensor, Role(integer=("I32",))]
    reset: NodeReset
    resets_after_decay: bool = False

    @property
    def carry_share(self) -> float:
        """The decay."""
        return self.multiplier / 2**self.shift

    def integrate(self, carry: Tensor, current: Tensor) -> Tensor:
        """Decay the carry and add the current."""
        membrane = ((carry * self.multiplier) >> self.shift) + current
        if not self.resets_after_decay:
            return membrane
        reached = carry >= per_channel(self.thresholds[0], carry)
        return membrane - per_channel(self.reset_amount, carry) * reached

    def _check_settings(self, timesteps: int) -> None:
        is_decay = self.multiplier <= 2**self.shift
        require(is_decay, "decay", "it multiplies its carry by more than one")
        if self.resets_after_decay:
            self._check_reset_after_decay()

    def fits(self, currents: Interval, timesteps: int) -> bool:
        """Return whether no result can overflow, given the interval of its currents."""
        membranes, others = membrane_intervals(self, currents, timesteps)
        return _fits([*membranes, *others])

    def bound(
        self, inputs: Sequence[Interval], values: Sequence[Value], *, timesteps: int
    ) -> tuple[Interval | None, Interval]:
        """Bound membranes, products of the decay and carries; the output is its levels."""
        membranes, others = membrane_intervals(self, inputs[0], timesteps)
        return hull([*membranes, *others]).with_zero(), Interval.of(0, self.max_level)


def membrane_intervals(
    node: IntegerNeuron, currents: Interval, timesteps: int
) -> tuple[list[Interval], list[Interval]]:
    """Return the intervals of the membrane per timestep, and of all intermediate results.

    Both lists end early when 32 bits are exceeded; ``Bound.bits`` then raises. A timestep that
    carries the same interval as the one before is a fixed point: all later ones are equal.
    """
    if not _fits([currents]):
        return [currents], []
    parts = _MembraneByLevel(node, channels=len(currents.low))
    currents = Interval(*(np.broadcast_to(side, parts.channels).astype(int) for side in currents))
    carried = Interval(np.zeros(parts.channels, int), np.zeros(parts.channels, int))
    membranes: list[Interval] = []
    others: list[Interval] = []
    while len(membranes) < timesteps and _fits([*membranes[-1:], *others[-4:]]):
        product, decayed = _decayed(node, carried)
        resets_now = node.resets_after_decay and bool(membranes)
        left = parts.reset(carried, node) if resets_now else decayed
        membrane = left.plus(currents)
        before = carried
        carried = membrane if node.resets_after_decay else parts.reset(membrane)
        membranes.append(membrane)
        others += [product, left, decayed.plus(currents), carried]
        if all((old == new).all() for old, new in zip(before, carried, strict=True)):
            membranes += [membrane] * (timesteps - len(membranes))
    return membranes, others


class _MembraneByLevel:
    """A neuron's membrane intervals, split by the emitted level: arrays ``[N + 1, C]``."""

    def __init__(self, node: IntegerNeuron, *, channels: int) -> None:
        thresholds, reset_amount = (
            t.cpu().numpy().astype(int) for t in (node.thresholds, node.reset_amount)
        )
        self.channels = max(channels, thresholds.shape[1], len(reset_amount))
        thresholds = np.broadcast_to(thresholds, (len(thresholds), self.channels))
        beyond = np.full((1, self.channels), _UNBOUNDED)
        self._low = np.concatenate([-beyond, thresholds])
        self._high = np.concatenate([thresholds - 1, beyond])
        level = np.arange(len(thresholds) + 1)[:, None]
        reset = "event" if node.resets_after_decay else node.reset
        units = {"event": np.minimum(level, 1), "level": level}.get(reset, 0 * level)
        self._reset_amount = units * reset_amount  # [N + 1, C]
        self._is_kept = (level == 0) | (reset != "zero")

    def reset(self, membrane: Interval, node: IntegerNeuron | None = None) -> Interval:
        """Return the hull of all parts after their reset; with a node, its decay comes first."""
        low = np.maximum(membrane.low, self._low)
        high = np.minimum(membrane.high, self._high)
        is_there = low <= high  # some level always is
        part = Interval(low, high) if node is None else _decayed(node, Interval(low, high))[1]
        low, high = (side * self._is_kept - self._reset_amount for side in part)
        return Interval(
            np.where(is_there, low, _UNBOUNDED).min(0), np.where(is_there, high, -_UNBOUNDED).max(0)
        )


def _fits(parts: list[Interval]) -> bool:
    """Whether all intervals fit the widest integers allowed."""
    largest = 2 ** (WIDTHS[-1] - 1)
    return all(-largest <= part.low.min() and part.high.max() < largest for part in parts)


def _decayed(node: IntegerNeuron, carried: Interval) -> tuple[Interval, Interval]:
    product = Interval(carried.low * node.multiplier, carried.high * node.multiplier)
    return product, Interval(product.low >> node.shift, product.high >> node.shift)
