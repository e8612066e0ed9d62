"""The overflow proof: which integers can appear anywhere in an integer network, at most.

Levels are not negative, so a synapse's sums lie between the largest level times its negative
weights and the largest level times its positive ones, whatever the order of the additions, bit by
bit or in lanes. A membrane follows timestep by timestep: for every level that it may emit, the
membranes that emit it, after their reset; the union of these is what it carries on. Python's
integers have no width, so the proof itself cannot overflow.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lbq.deploy.network import INPUT, LoweredNetwork
from lbq.deploy.nodes import IntegerNeuron, Merge, Pool, Readout, Repeat, Shortcut, Synapse
from lbq.errors import BoundError

PIXEL_MAX = 255
"""The largest pixel or event count that enters an integer network."""
WIDTHS = (16, 32)
"""Bits that accumulators and membranes may have."""


class Interval(NamedTuple):
    """Smallest and largest value per channel: arrays of Python's integers."""

    low: np.ndarray
    high: np.ndarray

    def plus(self, other: "Interval") -> "Interval":
        """Return where a sum of both lies."""
        return Interval(self.low + other.low, self.high + other.high)

    def with_rest(self) -> "Interval":
        """Include zero, and so every partial sum."""
        return Interval(np.minimum(self.low, 0), np.maximum(self.high, 0))

    def extremes(self) -> tuple[int, int]:
        """Return the smallest and the largest value of all channels."""
        return int(self.low.min()), int(self.high.max())


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What the integers of one node never leave."""

    path: str
    low: int
    high: int

    @property
    def bits(self) -> int:
        """Return the narrowest width that holds them, or complain that none does."""
        for bits in WIDTHS:
            if -(2 ** (bits - 1)) <= self.low and self.high < 2 ** (bits - 1):
                return bits
        raise BoundError(
            f"{self.path} can reach {self.low}..{self.high}, which no {WIDTHS[-1]}-bit integer "
            f"holds; use fewer weight bits or fewer timesteps"
        )


def prove(network: LoweredNetwork) -> dict[str, Bound]:
    """Bound every accumulator and membrane of an integer network, or refuse it.

    Returns:
        For every node that computes: the hull of all its integers, partial sums included.
    """
    return {path: bound for path, (bound, _) in _propagate(network).items() if bound is not None}


def membrane_intervals(network: LoweredNetwork) -> dict[str, list[Interval]]:
    """Return what every neuron's membranes lie in, per timestep and channel."""
    intervals = {path: interval for path, (_, interval) in _propagate(network).items()}
    return {
        place.path: _membranes(node, intervals[place.inputs[0]], network.timesteps)[0]
        for place, node in network.nodes()
        if isinstance(node, IntegerNeuron)
    }


def _propagate(network: LoweredNetwork) -> dict[str, tuple[Bound | None, Interval]]:
    """Follow intervals through the network: what each node computes within, and what it gives."""
    zero, pixel = np.array([0], dtype=object), np.array([PIXEL_MAX], dtype=object)
    found: dict[str, tuple[Bound | None, Interval]] = {INPUT: (None, Interval(zero, pixel))}
    for place, node in network.nodes():
        entering = [found[name][1] for name in place.inputs]
        if isinstance(node, Synapse | Shortcut):
            _check_inputs(place.path, node, entering[0])
            inner, outer = _weighted(node)
            bound = _bound(place.path, inner)
        elif isinstance(node, Merge):
            outer = entering[0]
            inner = entering[0].with_rest()
            for interval in entering[1:]:
                outer, inner = outer.plus(interval), inner.plus(interval.with_rest())
            bound = _bound(place.path, inner)
        elif isinstance(node, IntegerNeuron):
            membranes, products = _membranes(node, entering[0], network.timesteps)
            hull = _hull([*membranes, *products]).with_rest()
            bound = _bound(place.path, hull)
            outer = Interval(zero, np.array([node.max_level], dtype=object))
        elif isinstance(node, Readout):
            factor = network.timesteps if node.over_time == "sum" else 1
            outer = Interval(entering[0].low * factor, entering[0].high * factor)
            bound = _bound(place.path, outer.with_rest())
        elif isinstance(node, Pool):
            outer = entering[0]
            if node.kind == "sum":
                size = node.kernel[0] * node.kernel[1]
                outer = Interval(outer.low * size, outer.high * size)
            bound = None
        elif isinstance(node, Repeat):
            outer, bound = entering[0], None
        else:
            raise BoundError(f"{place.path} ({type(node).__name__}) has no place among integers")
        _ = None if bound is None else bound.bits  # complain now, by name
        found[place.path] = bound, outer
    del found[INPUT]
    return found


def _check_inputs(path: str, node: Synapse | Shortcut, entering: Interval) -> None:
    """Complain if more can enter than the node says."""
    low, high = entering.extremes()
    if node.max_input is None or low < 0 or high > node.max_input:
        raise BoundError(
            f"{path} says that 0..{node.max_input} enters, but what it reads lies in {low}..{high}"
        )


def _weighted(node: Synapse | Shortcut) -> tuple[Interval, Interval]:
    """Bound the partial sums of a synapse, and its currents."""
    assert node.max_input is not None  # checked
    weight = node.weight.long().flatten(1) if node.weight.dim() > 1 else node.weight.long()[:, None]
    positive = _objects(weight.clamp(min=0).sum(1)) * node.max_input
    negative = _objects(weight.clamp(max=0).sum(1)) * node.max_input
    sums = Interval(negative, positive)
    if node.bias is None:
        return sums, sums
    bias = node.bias.long().flatten(1) if node.bias.dim() > 1 else node.bias.long()[:, None]
    currents = sums.plus(Interval(_objects(bias.amin(1)), _objects(bias.amax(1))))
    return _hull([sums, currents]), currents


def _membranes(
    node: IntegerNeuron, currents: Interval, timesteps: int
) -> tuple[list[Interval], list[Interval]]:
    """Bound the membrane at every timestep, and the products that its decay forms."""
    channels = max(len(currents.low), node.ladder.shape[1], node.removed.numel())
    currents = Interval(*(np.broadcast_to(side, channels) for side in currents))
    carried = Interval(*(np.zeros(channels, dtype=object),) * 2)  # type: ignore[arg-type]
    membranes: list[Interval] = []
    products: list[Interval] = []
    for _ in range(timesteps):
        product, decayed = _decayed(node, carried)
        products.append(product)
        if node.resets_after_decay and membranes:
            parts = [
                Interval(
                    *(side - units * _objects(node.removed) for side in _decayed(node, part)[1])
                )
                for part, units in _by_level(node, membranes[-1])
            ]
            decayed = _joined(parts)
        membrane = decayed.plus(currents)
        membranes.append(membrane)
        if node.resets_after_decay:
            carried = membrane
            continue
        after: list[Interval] = []
        for part, level in _by_level(node, membrane):
            units = {"none": 0, "event": min(level, 1), "level": level}.get(node.reset)
            if units is None:  # "zero"
                kept = 0 if level else 1
                after.append(Interval(part.low * kept, part.high * kept))
            else:
                removed = units * _objects(node.removed)
                after.append(Interval(part.low - removed, part.high - removed))
        carried = _joined(after)
    return membranes, [*products, carried]


def _decayed(node: IntegerNeuron, carried: Interval) -> tuple[Interval, Interval]:
    product = Interval(carried.low * node.multiplier, carried.high * node.multiplier)
    return product, Interval(product.low >> node.shift, product.high >> node.shift)


def _by_level(node: IntegerNeuron, membrane: Interval) -> list[tuple[Interval, int]]:
    """Split an interval by the level it emits; empty parts have low > high."""
    ladder = [_objects(rung) for rung in node.ladder]
    parts: list[tuple[Interval, int]] = []
    for level in range(len(ladder) + 1):
        low = membrane.low if level == 0 else np.maximum(membrane.low, ladder[level - 1])
        high = membrane.high
        if level < len(ladder):
            high = np.minimum(high, ladder[level] - 1)
        parts.append((Interval(low, high), level))
    return parts


def _joined(parts: list[Interval]) -> Interval:
    """Return the hull of the parts that are not empty; at least one never is."""
    low: np.ndarray | None = None
    high = low
    for part in parts:
        is_there = part.low <= part.high
        if low is None or high is None:
            huge = np.array([10**30], dtype=object)
            low = np.where(is_there, part.low, huge)
            high = np.where(is_there, part.high, -huge)
            continue
        low = np.where(is_there, np.minimum(low, part.low), low)
        high = np.where(is_there, np.maximum(high, part.high), high)
    assert low is not None
    assert high is not None
    return Interval(low, high)


def _hull(parts: list[Interval]) -> Interval:
    low, high = parts[0]
    for part in parts[1:]:
        low, high = np.minimum(low, part.low), np.maximum(high, part.high)
    return Interval(low, high)


def _bound(path: str, interval: Interval) -> Bound:
    low, high = interval.extremes()
    return Bound(path=path, low=low, high=high)


def _objects(values: Tensor) -> np.ndarray:
    """Return the values as Python's integers."""
    return np.array([int(value) for value in values.flatten().tolist()], dtype=object)
