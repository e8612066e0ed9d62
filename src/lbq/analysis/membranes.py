"""Where membranes lie between the thresholds, and what the surrogate makes of them.

A membrane is looked at as its ratio to the step, r = U / step, so that all layers share one axis:
the thresholds are 1, 2, .., max_level. Neurons keep their membranes to themselves; they are found
again from the currents that arrived and the levels that left, with the equations of
:mod:`lbq.functional.membrane`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lbq.functional.membrane import integrate, soft_reset
from lbq.neurons.burst import BurstLIF
from lbq.neurons.surrogates import BoxET
from lbq.neurons.watch import named_neurons, removing_hooks
from lbq.types import Currents, Levels

BINS_PER_STEP = 10
"""Bins of a histogram between two thresholds."""
MARGIN = 3
"""Steps below zero and above the largest level that a histogram still shows."""


@dataclass(frozen=True, kw_only=True)
class LayerMembranes:
    """The membranes of one layer, over neurons, images and timesteps."""

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
    """Sorts the membranes of every burst neuron of a model into histograms.

    Other neurons (binary, ternary, I-LIF, MLF, LM-HT) have other resets and are left out. Hooking
    the currents makes a fused network run its modules one by one while it is watched.

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
        """Look at what passes inside the ``with`` block."""
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
        """Return what was counted so far, for the layers that ran."""
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
    """Yield U / step of every instant of a sequence that started from rest."""
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
