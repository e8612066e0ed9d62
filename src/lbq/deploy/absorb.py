"""Signals on their way from neurons to synapses, and the steps that travel with them."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from lbq.functional.absorb import absorb_step

Axes = Literal["still", "time", "folded"]
"""Whether a tensor is ``[B, ...]``, ``[T, B, ...]`` or ``[T * B, ...]``."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """What one node gives, times a scale: bursts are a step times levels."""

    source: str
    """Path of the node."""
    scale: Tensor
    """Step and gains that nobody absorbed yet, float64, ``[1]`` or ``[C]``."""
    max_size: int | None
    """Largest size of its integers; None for real numbers."""
    channels: int
    first_channel: int = 0
    """Where its channels begin in a concatenation."""

    @property
    def is_current(self) -> bool:
        """Whether these are currents as they are."""
        return self.max_size is None and bool((self.scale == 1).all())

    def scaled(self, factor: float) -> "Term":
        """Return the term with another factor on its way."""
        return replace(self, scale=self.scale * factor)


@dataclass(frozen=True, kw_only=True)
class Signal:
    """A tensor of the trained network: a sum of terms."""

    terms: tuple[Term, ...]
    axes: Axes
    is_flat: bool = False
    """Whether channels and space were flattened into features."""

    @property
    def channels(self) -> int:
        """Count the channels, concatenated ones included."""
        return max(term.first_channel + term.channels for term in self.terms)

    def added(self, other: "Signal") -> "Signal":
        """Add another signal; terms of one node become one term."""
        terms = list(self.terms)
        for term in other.terms:
            for index, mine in enumerate(terms):
                if (mine.source, mine.first_channel) == (term.source, term.first_channel):
                    terms[index] = replace(mine, scale=mine.scale + term.scale)
                    break
            else:
                terms.append(term)
        return replace(self, terms=tuple(terms))


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A synapse that batch norms may still be folded into."""

    path: str
    inputs: Signal
    weight: Tensor
    bias: Tensor | None
    layer: nn.Conv2d | nn.Linear


def absorb(weight: Tensor, term: Term, *, channels: int, groups: int) -> Tensor:
    """Scale the part of a synapse that reads this term by the step that comes with it.

    Args:
        weight: ``[out, in / groups, ...]``; a linear layer may read features of flattened channels.
        term: what enters.
        channels: that enter the synapse, over all terms.
        groups: of the synapse; one where channels were concatenated.
    """
    features = weight.shape[1] * groups // channels  # of one channel; 1 unless it was flattened
    if groups == 1:
        weight = weight.narrow(1, term.first_channel * features, term.channels * features)
    scale = term.scale
    if scale.numel() > 1:
        scale = scale.repeat_interleave(features)
    if groups == 1 or scale.numel() == 1:
        return absorb_step(weight, scale)
    parts = zip(weight.chunk(groups), scale.chunk(groups), strict=True)
    return torch.cat([absorb_step(part, step) for part, step in parts])
