"""Overflow proof: bounds on every integer that an integer network can compute.

Levels are not negative, so a synapse's sums lie between the largest level times its negative
weights and the largest level times its positive ones, in any order of additions. Membranes are
bounded timestep by timestep: the interval is split by the level that it emits, each part is reset,
and the hull of the parts is carried on. The proof itself cannot overflow: sums are Python integers,
and membranes are computed in int64 only while they fit int32.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lbq.deploy.lowered_network import INPUT, LoweredNetwork
from lbq.deploy.nodes import IntegerNeuron, Merge, Pool, Readout, Repeat, Shortcut, Synapse
from lbq.errors import BoundError

PIXEL_MAX = 255
"""The largest pixel or event count that enters an integer network."""
_UNBOUNDED = 2**62
WIDTHS = (16, 32)
"""Allowed bits of accumulators and membranes."""


class Interval(NamedTuple):
    """Smallest and largest value per channel: arrays of Python integers."""

    low: np.ndarray
    high: np.ndarray

    def plus(self, other: "Interval") -> "Interval":
        """Return the interval of the sum of both."""
        return Interval(self.low + other.low, self.high + other.high)

    def with_zero(self) -> "Interval":
        """Include zero and with it every partial sum."""
        return Interval(np.minimum(self.low, 0), np.maximum(self.high, 0))

    def extremes(self) -> tuple[int, int]:
        """Return the smallest and largest value over all channels."""
        return int(self.low.min()), int(self.high.max())


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


def prove(network: LoweredNetwork) -> dict[str, Bound]:
    """Bound every accumulator and membrane of an integer network; raise if one can overflow.

    Returns:
        For every node that computes, the range of its integers, partial sums included.
    """
    return {path: bound for path, (bound, _) in _propagate(network).items() if bound is not None}


def membrane_intervals(network: LoweredNetwork) -> dict[str, list[Interval]]:
    """Return the interval of every neuron's membranes, per timestep and channel."""
    intervals = {path: interval for path, (_, interval) in _propagate(network).items()}
    return {
        ref.path: _membranes(node, intervals[ref.inputs[0]], network.timesteps)[0]
        for ref, node in network.nodes()
        if isinstance(node, IntegerNeuron)
    }


def _propagate(network: LoweredNetwork) -> dict[str, tuple[Bound | None, Interval]]:
    """Propagate intervals; return for each node its bound and the interval of its output."""
    zero, pixel = np.array([0], dtype=object), np.array([PIXEL_MAX], dtype=object)
    found: dict[str, tuple[Bound | None, Interval]] = {INPUT: (None, Interval(zero, pixel))}
    for ref, node in network.nodes():
        entering = [found[name][1] for name in ref.inputs]
        if isinstance(node, Synapse | Shortcut):
            _check_inputs(ref.path, node, entering[0])
            inner, outer = _weighted(node)
            bound = _bound(ref.path, inner)
        elif isinstance(node, Merge):
            outer = entering[0]
            inner = entering[0].with_zero()
            for interval in entering[1:]:
                outer, inner = outer.plus(interval), inner.plus(interval.with_zero())
            bound = _bound(ref.path, inner)
        elif isinstance(node, IntegerNeuron):
            membranes, products = _membranes(node, entering[0], network.timesteps)
            hull = _hull([*membranes, *products]).with_zero()
            bound = _bound(ref.path, hull)
            outer = Interval(zero, np.array([node.max_level], dtype=object))
        elif isinstance(node, Readout):
            factor = network.timesteps if node.over_time == "sum" else 1
            outer = Interval(entering[0].low * factor, entering[0].high * factor)
            bound = _bound(ref.path, outer.with_zero())
        elif isinstance(node, Pool):
            outer = entering[0]
            if node.kind == "sum":
                size = node.kernel[0] * node.kernel[1]
                outer = Interval(outer.low * size, outer.high * size)
                if any(node.padding):  # a window at the border holds less
                    outer = outer.with_zero()
            bound = None
        elif isinstance(node, Repeat):
            outer, bound = entering[0], None
        else:
            raise BoundError(f"{ref.path} ({type(node).__name__}) is not an integer node")
        _ = None if bound is None else bound.bits  # raises here, with the path
        found[ref.path] = bound, outer
    del found[INPUT]
    return found


def _check_inputs(path: str, node: Synapse | Shortcut, entering: Interval) -> None:
    """Raise if the inputs can exceed ``max_input``."""
    low, high = entering.extremes()
    if node.max_input is None or low < 0 or high > node.max_input:
        raise BoundError(
            f"{path} has max_input={node.max_input}, but its inputs lie in {low}..{high}"
        )


def _weighted(node: Synapse | Shortcut) -> tuple[Interval, Interval]:
    """Return the intervals of a synapse's partial sums and of its currents."""
    assert node.max_input is not None  # checked
    weight = node.weight.flatten(1) if node.weight.dim() > 1 else node.weight[:, None]
    positive = _objects(weight.clamp(min=0).sum(1, dtype=torch.long)) * node.max_input
    negative = _objects(weight.clamp(max=0).sum(1, dtype=torch.long)) * node.max_input
    sums = Interval(negative, positive)
    if node.bias is None:
        return sums, sums
    bias = node.bias.long().flatten(1) if node.bias.dim() > 1 else node.bias.long()[:, None]
    currents = sums.plus(Interval(_objects(bias.amin(1)), _objects(bias.amax(1))))
    return _hull([sums, currents]), currents


def _membranes(
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


def _hull(parts: list[Interval]) -> Interval:
    low, high = parts[0]
    for part in parts[1:]:
        low, high = np.minimum(low, part.low), np.maximum(high, part.high)
    return Interval(low, high)


def _bound(path: str, interval: Interval) -> Bound:
    low, high = interval.extremes()
    return Bound(path=path, low=low, high=high)


def _objects(values: Tensor) -> np.ndarray:
    """Return the values as Python integers."""
    return np.array([int(value) for value in values.flatten().tolist()], dtype=object)
