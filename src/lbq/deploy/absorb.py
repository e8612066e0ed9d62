"""Signals on their way from neurons to synapses, and the steps that travel with them."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lbq.deploy.pool_args import PoolArgs
from lbq.functional.absorb import absorb_step

Axes = Literal["still", "once", "time", "folded", "mean"]
"""Whether a tensor is ``[B, ...]``, ``[1, B, ...]``, ``[T, B, ...]``, ``[T * B, ...]``, or the
mean over time, ``[B, ...]``, of terms that are ``[T, B, ...]``."""


@dataclass(frozen=True, kw_only=True)
class ScaledInput:
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
    positions: int = 0
    """Pixels of every channel that a flatten turned into features while the node still gives
    ``[C, H, W]``; 0 where the node gives what the signal says."""

    @property
    def is_current(self) -> bool:
        """Whether these are currents as they are."""
        return self.max_size is None and bool((self.scale == 1).all())

    def scaled(self, factor: float) -> "ScaledInput":
        """Return the term with another factor on its way."""
        return replace(self, scale=self.scale * factor)


@dataclass(frozen=True, kw_only=True)
class SymbolicValue:
    """A tensor of the trained network: a sum of terms."""

    terms: tuple[ScaledInput, ...]
    axes: Axes
    is_flat: bool = False
    """Whether channels and space were flattened into features."""

    @property
    def channels(self) -> int:
        """Count the channels, concatenated ones included."""
        return max(term.first_channel + term.channels for term in self.terms)

    def added(self, other: "SymbolicValue") -> "SymbolicValue":
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
class PendingSynapse:
    """A synapse that batch norms and the divisors of average pools may still be folded into."""

    path: str
    inputs: SymbolicValue
    weight: Tensor
    bias: Tensor | None
    geometry: dict[str, Any] = field(default_factory=dict[str, Any])
    """Stride, padding, dilation and groups of a convolution; empty for a linear layer."""
    entering: tuple[int, ...] = ()
    """Height and width of what a convolution reads."""
    pools: tuple[tuple[str, PoolArgs], ...] = ()
    """Sums over windows of its currents, behind it: the paths of the pools and their windows."""

    @property
    def is_linear(self) -> bool:
        """Whether this is a linear layer, which flattens what enters."""
        return not self.geometry

    @property
    def num_summed(self) -> int:
        """Count the currents that one sum of the pools adds up."""
        return math.prod(math.prod(window.kernel) for _, window in self.pools)

    def scaled(self, factor: float) -> "PendingSynapse":
        """Return the draft of currents that are this many times as large."""
        bias = None if self.bias is None else self.bias * factor
        return replace(self, weight=self.weight * factor, bias=bias)


def absorb(weight: Tensor, term: ScaledInput, *, channels: int, groups: int) -> Tensor:
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
