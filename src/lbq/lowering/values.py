"""Symbolic values: tensors of the trained network in terms of lowered nodes."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lbq.graph.layout import Layout
from lbq.lowering.pool_args import PoolArgs


@dataclass(frozen=True, kw_only=True)
class ScaledInput:
    """The output of one node times a scale, such as levels times their step."""

    source: str
    """Path of the node."""
    shape: tuple[int, ...]
    """Shape for one sample and timestep, ``(C, *space)``."""
    scale: Tensor
    """Step and gains that are not absorbed yet, float64, ``[1]`` or ``[C]``."""
    max_size: int | None
    """Largest absolute value of its integers; None for real numbers."""
    first_channel: int = 0
    """Offset of its channels in a concatenation."""

    @property
    def is_current(self) -> bool:
        """Whether these are currents with scale 1."""
        return self.max_size is None and bool((self.scale == 1).all())


@dataclass(frozen=True, kw_only=True)
class SymbolicValue:
    """A tensor of the trained network as a sum of scaled node outputs."""

    terms: tuple[ScaledInput, ...]
    """Each has the spatial axes of the layout's node, and all or some of its channels."""
    layout: Layout
    is_mean: bool = False
    """Whether it is the mean over time of the terms; the layout has no time then."""
    repeat: str = ""
    """Path of the node that will repeat the static terms over time, behind the first synapse."""

    @property
    def has_time(self) -> bool:
        """Whether the terms have a time axis."""
        return (self.layout.has_time and not self.repeat) or self.is_mean

    @property
    def are_levels(self) -> bool:
        """Whether all terms are integers."""
        return all(term.max_size is not None for term in self.terms)

    @property
    def is_concatenated(self) -> bool:
        """Whether each term has only some of the channels."""
        return any(term.shape[0] != self.layout.node[0] for term in self.terms)

    def added(self, other: "SymbolicValue") -> "SymbolicValue":
        """Add another value; combine terms of the same node."""
        terms = list(self.terms)
        for term in other.terms:
            for index, mine in enumerate(terms):
                if (mine.source, mine.first_channel) == (term.source, term.first_channel):
                    terms[index] = replace(mine, scale=mine.scale + term.scale)
                    break
            else:
                terms.append(term)
        return replace(self, terms=tuple(terms))

    def scaled(self, numbers: Tensor) -> "SymbolicValue":
        """Multiply by numbers, ``[1]`` or one per channel of the node."""

        def of_term(term: ScaledInput) -> ScaledInput:
            own = numbers
            if own.numel() > 1:
                own = own.narrow(0, term.first_channel, term.shape[0])
            return replace(term, scale=term.scale * own)

        return replace(self, terms=tuple(map(of_term, self.terms)))


@dataclass(frozen=True, kw_only=True)
class PendingSynapse:
    """A synapse that batch norms, constants and mean pools may still be folded into."""

    path: str
    inputs: SymbolicValue
    weight: Tensor
    bias: Tensor | None
    """``[out]``, or one bias per position where the values at borders differ."""
    layout: Layout
    """Layout of the result, behind the pools."""
    geometry: dict[str, Any] = field(default_factory=dict[str, Any])
    """Stride, padding, dilation and groups of a convolution; empty for a linear layer."""
    pools: tuple[tuple[str, PoolArgs], ...] = ()
    """Sum pools behind it, with their paths."""

    @property
    def num_summed(self) -> int:
        """Return the number of currents in one sum of the pools."""
        return math.prod(math.prod(window.kernel) for _, window in self.pools)

    @property
    def takes_bias(self) -> bool:
        """Whether a constant behind it can be part of its bias."""
        return not any(any(window.padding) for _, window in self.pools)

    def folded(self, gain: Tensor, offset: Tensor | None = None) -> "PendingSynapse":
        """Fold a gain and an offset of the currents in, each ``[1]`` or ``[C]``."""
        weight, bias = self.weight * along_channels(gain, self.weight), self.bias
        if offset is None:
            bias = None if bias is None else bias * along_channels(gain, bias)
            return replace(self, weight=weight, bias=bias)
        added = (offset / self.num_summed).expand(len(weight))
        if bias is not None:
            added = torch.addcmul(along_channels(added, bias), bias, along_channels(gain, bias))
        return replace(self, weight=weight, bias=added)


@dataclass(frozen=True, kw_only=True)
class PendingProduct:
    """A product of two matrices of levels, which may still be associated with a third."""

    path: str
    left: SymbolicValue
    """``[groups, rows, n]`` per sample and timestep."""
    right: SymbolicValue
    """``[groups, n, columns]``."""
    layout: Layout
    scale: Tensor
    """``[1]``."""


Pending = PendingSynapse | PendingProduct
Symbolic = SymbolicValue | PendingSynapse | PendingProduct


def along_channels(values: Tensor, like: Tensor) -> Tensor:
    """Shape ``[1]`` or ``[C]`` to broadcast against ``[C, *space]``."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


def numbers(*values: float) -> Tensor:
    """Return numbers in float64."""
    return torch.tensor(values, dtype=torch.float64)
