"""Statistics of a network's layers: learned steps, emitted levels, membranes."""

import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lbq.errors import LevelError
from lbq.functional.membrane import integrate, soft_reset
from lbq.neurons.burst import BurstLIF
from lbq.neurons.neuron import Neuron
from lbq.neurons.step import LearnedStep, NeuronStep
from lbq.neurons.surrogates import BoxET
from lbq.neurons.watch import named_neurons, removing_hooks
from lbq.types import Currents, Levels


@dataclass(frozen=True, kw_only=True)
class LayerStep:
    """The step of one layer: one number, or the spread of one number per channel."""

    layer: str
    """Path of the neuron."""
    mean: float
    smallest: float
    largest: float
    """The same as the smallest unless every channel has a step of its own."""
    is_learned: bool


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """The steps of a network, in the order of its layers; empty if its neurons have none."""

    layers: tuple[LayerStep, ...]

    @property
    def means(self) -> tuple[float, ...]:
        """One step per layer."""
        return tuple(layer.mean for layer in self.layers)

    @property
    def is_learned(self) -> bool:
        """Whether any layer learned its step."""
        return any(layer.is_learned for layer in self.layers)

    @property
    def variation(self) -> float:
        """Divide the layers' standard deviation by their mean: the coefficient of variation.

        Choice: the population deviation over layers; the paper does not say.
        """
        if not self.layers:
            return math.nan
        mean = sum(self.means) / len(self.means)
        variance = sum((step - mean) ** 2 for step in self.means) / len(self.means)
        return math.sqrt(variance) / mean


def read_steps(model: nn.Module) -> StepProfile:
    """Read the step of every neuron that has one.

    A parameter that scales only the output, such as the amplitude of the published ternary neuron,
    is not a step.
    """
    found = (_read(layer, neuron) for layer, neuron in named_neurons(model))
    return StepProfile(layers=tuple(step for step in found if step is not None))


def _read(layer: str, neuron: Neuron) -> LayerStep | None:
    step = getattr(neuron, "step", None)
    if not isinstance(step, NeuronStep) or not neuron.step_sets_levels:
        return None
    values = step().detach().double()
    return LayerStep(
        layer=layer,
        mean=values.mean().item(),
        smallest=values.min().item(),
        largest=values.max().item(),
        is_learned=isinstance(step, LearnedStep),
    )


@dataclass(frozen=True, kw_only=True)
class LayerLevels:
    """How often one layer emitted each level, over neurons, images and timesteps."""

    layer: str
    counts: tuple[int, ...]
    """Counts of levels 0, 1, .., max_level; a signed level counts by its size."""
    is_signed: bool = False
    """Whether levels below zero are among them."""

    @property
    def max_level(self) -> int:
        """Largest level that the layer could have emitted."""
        return len(self.counts) - 1

    @property
    def active(self) -> int:
        """Levels that are not zero."""
        return sum(self.counts[1:])

    @property
    def active_ratio(self) -> float:
        """Share of levels that are not zero."""
        return self.active / max(1, sum(self.counts))

    @property
    def shares(self) -> tuple[float, ...] | None:
        """P(k | k > 0) for k = 1 .. max_level; None for a layer that was silent."""
        if not self.active:
            return None
        return tuple(count / self.active for count in self.counts[1:])

    @property
    def entropy(self) -> float | None:
        """Normalised conditional burst entropy: H(k | k > 0) / log(max_level), from 0 to 1.

        1 if all levels above zero are emitted equally often. None for a layer that was silent or
        has a single level.
        """
        if self.shares is None or self.max_level == 1:
            return None
        nats = -sum(share * math.log(share) for share in self.shares if share)
        return nats / math.log(self.max_level)


@dataclass(frozen=True, kw_only=True)
class LevelProfile:
    """The levels of a network. Averages count every layer once, as the paper's do."""

    num_images: int
    layers: tuple[LayerLevels, ...]

    @property
    def active_ratio(self) -> float:
        """Mean of the layers' active ratios."""
        return sum(layer.active_ratio for layer in self.layers) / max(1, len(self.layers))

    @property
    def entropy(self) -> float | None:
        """Mean of the layers' entropies; None if no layer has one."""
        return _mean(layer.entropy for layer in self.layers)

    @property
    def max_level(self) -> int:
        """Largest level of any layer."""
        return max((layer.max_level for layer in self.layers), default=0)

    @property
    def is_signed(self) -> bool:
        """Whether any layer emits levels below zero."""
        return any(layer.is_signed for layer in self.layers)

    def share(self, level: int) -> float | None:
        """Mean over the layers of P(level | k > 0); silent layers have none."""
        return _mean(
            layer.shares[level - 1] if level <= layer.max_level else 0.0
            for layer in self.layers
            if layer.shares is not None
        )


class LevelCounts:
    """Counts how often every layer emits every level; a callback of :func:`lbq.watch_levels`.

    Example:
        >>> counts = LevelCounts({layer: n.max_level for layer, n in named_neurons(model)})
        >>> with lbq.watch_levels(model, counts):
        ...     model(images)
        >>> counts.profile().active_ratio

    Args:
        max_levels: the largest level of every layer that will be watched.
    """

    def __init__(self, max_levels: dict[str, int]) -> None:
        self._counts = {
            layer: torch.zeros(max_level + 1, dtype=torch.int64)
            for layer, max_level in max_levels.items()
        }
        self._signed: set[str] = set()
        self._images: dict[tuple[str, int], int] = {}

    def __call__(self, layer: str, t: int, level: Tensor) -> None:
        """Add one timestep of one layer: ``level`` is ``[B, *n]`` in small integers."""
        if layer not in self._counts:
            known = ", ".join(self._counts) or "none"
            raise LevelError(f"levels of {layer!r} arrived, but the layers named are {known}")
        counts = self._counts[layer]
        if level.dtype == torch.int8:  # signed levels
            self._signed.add(layer)
        size = level.abs() if layer in self._signed else level
        found = torch.bincount(size.flatten(), minlength=len(counts)).cpu()
        if len(found) > len(counts):
            raise LevelError(
                f"{layer} emitted level {len(found) - 1}, but its largest is {len(counts) - 1}"
            )
        counts += found
        self._images[layer, t] = self._images.get((layer, t), 0) + len(level)

    def profile(self) -> LevelProfile:
        """Return the counts so far, in the order of the layers."""
        return LevelProfile(
            num_images=max(self._images.values(), default=0),
            layers=tuple(
                LayerLevels(
                    layer=layer, counts=tuple(counts.tolist()), is_signed=layer in self._signed
                )
                for layer, counts in self._counts.items()
            ),
        )


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


BINS_PER_STEP = 10
"""Bins of a histogram between two thresholds."""
MARGIN = 3
"""Steps below zero and above the largest level that a histogram still shows."""


@dataclass(frozen=True, kw_only=True)
class LayerMembranes:
    """Membranes of one layer as ratios U / step over neurons, images and timesteps.

    The thresholds are 1, 2, .., max_level.
    """

    layer: str
    max_level: int
    plateau: tuple[float, float]
    """Where the surrogate's slope is 1, in steps, both ends included."""
    tail: float | None
    """Strength of the surrogate's tails; None for a box."""
    histogram: tuple[int, ...]
    """Ratios from ``-MARGIN`` to ``max_level + MARGIN``, ``BINS_PER_STEP`` bins to a step."""
    total: int
    """All membranes, those outside the histogram too."""
    num_below: int
    """Membranes below the plateau, in the lower tail if there is one."""
    num_above: int
    """Membranes above the plateau, in the upper tail if there is one."""
    num_outside_box: int
    """Membranes that Box-ET would give no gradient."""

    @property
    def lower_tail(self) -> float:
        """Share of membranes below the plateau."""
        return self.num_below / max(1, self.total)

    @property
    def upper_tail(self) -> float:
        """Share of membranes above the plateau."""
        return self.num_above / max(1, self.total)

    @property
    def on_plateau(self) -> float:
        """Share of membranes where the surrogate's slope is 1."""
        return (self.total - self.num_below - self.num_above) / max(1, self.total)

    @property
    def outside_box(self) -> float:
        """Share of membranes that Box-ET would give no gradient."""
        return self.num_outside_box / max(1, self.total)


class MembraneCounts:
    """Collects histograms of the membranes of every burst neuron of a model.

    Membranes are recomputed from the currents that arrived and the levels that left. Other neurons
    (binary, ternary, I-LIF, MLF, LM-HT) have other resets and are left out. While hooked, a fused
    network runs its modules one by one.

    Example:
        >>> counts = MembraneCounts(model)
        >>> with counts.watching():
        ...     model(images)
        >>> [layer.on_plateau for layer in counts.layers()]
    """

    def __init__(self, model: nn.Module) -> None:
        self._neurons = {
            layer: neuron for layer, neuron in named_neurons(model) if type(neuron) is BurstLIF
        }
        self._found: dict[str, Tensor] = {}  # histogram, total, below, above, outside the box
        self._currents: dict[str, Tensor] = {}

    @contextmanager
    def watching(self) -> Generator[None]:
        """Count what runs inside the ``with`` block."""
        hooks = [
            hook
            for layer, neuron in self._neurons.items()
            for hook in (
                neuron.receive.register_forward_hook(partial(self._received, layer)),
                neuron.emit.register_forward_hook(partial(self._emitted, layer)),
            )
        ]
        with removing_hooks(hooks):
            yield

    def layers(self) -> tuple[LayerMembranes, ...]:
        """Return the counts so far, for the layers that ran."""
        return tuple(self._layer(layer, found) for layer, found in self._found.items())

    def _received(self, layer: str, receive: nn.Module, args: Any, currents: Tensor) -> None:
        self._currents[layer] = currents.detach()

    @torch.no_grad()
    def _emitted(self, layer: str, emit: nn.Module, args: Any, levels: Tensor) -> None:
        neuron = self._neurons[layer]
        for ratio in _ratios(neuron, self._currents.pop(layer), levels):
            self._found[layer] = self._found.get(layer, 0) + _sort(neuron, ratio)

    def _layer(self, layer: str, found: Tensor) -> LayerMembranes:
        neuron = self._neurons[layer]
        *histogram, total, below, above, outside = found.tolist()
        tail = neuron.surrogate.tail()
        return LayerMembranes(
            layer=layer,
            max_level=neuron.max_level,
            plateau=(neuron.options.lo, neuron.options.hi),
            tail=None if tail is None else tail.item(),
            histogram=tuple(histogram),
            total=total,
            num_below=below,
            num_above=above,
            num_outside_box=outside,
        )


def _ratios(neuron: BurstLIF, currents: Currents, levels: Levels) -> Generator[Tensor]:
    """Yield U / step of every timestep of a sequence that started from rest."""
    step = neuron.step.for_currents(currents, max_level=neuron.max_level)
    carry = None
    for current, level in zip(currents.float(), levels, strict=True):
        membrane = (
            current if carry is None else integrate(carry, current, decay=neuron.decay())
        )  # Eq. 7
        yield membrane / step
        carry = soft_reset(
            membrane,
            level.to(membrane.dtype),
            step=step,
            reset=neuron.reset,
            mode=neuron.options.reset_mode,
        )  # Eq. 8


def _sort(neuron: BurstLIF, ratio: Tensor) -> Tensor:
    bins = (neuron.max_level + 2 * MARGIN) * BINS_PER_STEP
    place = ((ratio.flatten() + MARGIN) * BINS_PER_STEP).floor()
    inside = place[(place >= 0) & (place < bins)].to(torch.int64)
    box = BoxET()
    outside = (ratio < box.lo) | (ratio > box.hi(neuron.max_level))
    below, above = ratio < neuron.options.lo, ratio > neuron.options.hi
    numbers = [ratio.numel(), int(below.sum()), int(above.sum()), int(outside.sum())]
    histogram = torch.bincount(inside, minlength=bins).cpu()
    return torch.cat([histogram, torch.tensor(numbers)])
