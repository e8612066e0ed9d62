"""Build the nodes of a lowered network from symbolic values.

A :class:`SymbolicValue` is a tensor of the trained network as a sum of scaled node outputs. Scales
(steps, gains of pools) are absorbed into the next synapse; batch norms are folded into the synapse
before them, which stays a :class:`PendingSynapse` until it is read.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lbq.deploy.graph import LoweredNetwork
from lbq.deploy.layout import Layout
from lbq.deploy.operators import Merge, Pool, Shortcut, Synapse
from lbq.deploy.pool_args import PoolArgs
from lbq.errors import LoweringError
from lbq.functional.planes import absorb_step


@dataclass(frozen=True, kw_only=True)
class ScaledInput:
    """The output of one node times a scale; bursts are a step times levels."""

    source: str
    """Path of the node."""
    scale: Tensor
    """Step and gains that are not absorbed yet, float64, ``[1]`` or ``[C]``."""
    max_size: int | None
    """Largest absolute value of its integers; None for real numbers."""
    channels: int
    first_channel: int = 0
    """Offset of its channels in a concatenation."""
    space: tuple[int, ...] = ()
    """Height and width of the node's output; empty for features."""

    @property
    def is_current(self) -> bool:
        """Whether these are currents with scale 1."""
        return self.max_size is None and bool((self.scale == 1).all())

    def scaled(self, factor: float) -> "ScaledInput":
        """Multiply the scale by a factor."""
        return replace(self, scale=self.scale * factor)


@dataclass(frozen=True, kw_only=True)
class SymbolicValue:
    """A tensor of the trained network as a sum of scaled node outputs."""

    terms: tuple[ScaledInput, ...]
    layout: Layout
    """Of the tensor, on a node with all of the terms' channels."""
    is_mean: bool = False
    """Whether it is the mean over time of terms that have time; its layout has none."""

    @property
    def has_time(self) -> bool:
        """Whether the terms have a time axis."""
        return self.layout.has_time or self.is_mean

    @property
    def is_flat(self) -> bool:
        """Whether it has one axis of features, of which some terms may be maps."""
        return len(self.layout.content) == 1

    def positions(self, term: ScaledInput) -> int:
        """Return the pixels per channel that a flatten turned into features; 0 for no flatten."""
        return math.prod(term.space) if self.is_flat and term.space else 0

    @property
    def channels(self) -> int:
        """Return the number of channels, concatenated ones included."""
        return max(term.first_channel + term.channels for term in self.terms)

    def added(self, other: "SymbolicValue") -> "SymbolicValue":
        """Add another value; terms of the same node are combined."""
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
    """A synapse that batch norms and divisors of average pools may still be folded into."""

    path: str
    inputs: SymbolicValue
    weight: Tensor
    bias: Tensor | None
    layout: Layout
    """Of the tensor that it gives."""
    geometry: dict[str, Any] = field(default_factory=dict[str, Any])
    """Stride, padding, dilation and groups of a convolution; empty for a linear layer."""
    space: tuple[int, ...] = ()
    """Height and width of what it gives, behind the pools; empty for features."""
    entering: tuple[int, ...] = ()
    """Height and width of the input of a convolution."""
    pools: tuple[tuple[str, PoolArgs], ...] = ()
    """Sum pools behind it, with their paths."""

    @property
    def num_summed(self) -> int:
        """Return the number of currents in one sum of the pools."""
        return math.prod(math.prod(window.kernel) for _, window in self.pools)

    def scaled(self, factor: Tensor) -> "PendingSynapse":
        """Return the pending of currents times a factor, ``[1]`` or ``[C]``."""
        bias = None if self.bias is None else self.bias * factor
        weight = self.weight * factor.reshape(-1, *[1] * (self.weight.dim() - 1))
        return replace(self, weight=weight, bias=bias)


def absorb(weight: Tensor, term: ScaledInput, *, channels: int, groups: int) -> Tensor:
    """Scale the weights that read a term by its scale.

    Args:
        weight: ``[out, in / groups, ...]``; a linear layer may read features of flattened channels.
        term: the input.
        channels: of all terms together.
        groups: of the synapse; 1 for concatenated channels.
    """
    features = weight.shape[1] * groups // channels  # per channel; 1 unless flattened
    if groups == 1:
        weight = weight.narrow(1, term.first_channel * features, term.channels * features)
    scale = term.scale
    if scale.numel() > 1:
        scale = scale.repeat_interleave(features)
    if groups == 1 or scale.numel() == 1:
        return absorb_step(weight, scale)
    parts = zip(weight.chunk(groups), scale.chunk(groups), strict=True)
    return torch.cat([absorb_step(part, step) for part, step in parts])


def batch_norm_affine(
    weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the gain and the offset per channel of a batch norm in eval mode."""
    gain = (variance.double() + eps).rsqrt()
    if weight is not None:
        gain = gain * weight.double()
    offset = -mean.double() * gain
    if bias is not None:
        offset = offset + bias.double()
    return gain.detach(), offset.detach()


def fold_batch_norm(
    weight: Tensor, bias: Tensor | None, gain: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a synapse followed by a batch norm."""
    scaled = weight.double() * gain.reshape(-1, *[1] * (weight.dim() - 1))
    if bias is None:
        return scaled, offset
    return scaled, torch.addcmul(offset, bias.double(), gain)


def unit_scale() -> Tensor:
    """Return the scale 1."""
    return torch.ones(1, dtype=torch.float64)


class GraphBuilder:
    """Adds nodes for symbolic values to a network.

    Args:
        network: receives the nodes.
        dtype: of their tensors.
    """

    def __init__(self, network: LoweredNetwork, dtype: torch.dtype) -> None:
        self._network, self._dtype = network, dtype
        self._built: dict[int, tuple[PendingSynapse, SymbolicValue]] = {}

    def materialize(self, pending: PendingSynapse) -> SymbolicValue:
        """Add one synapse per input term, and their sum; return the output."""
        if id(pending) in self._built:
            return self._built[id(pending)][1]
        signal, groups = pending.inputs, pending.geometry.get("groups", 1)
        if groups > 1 and any(term.first_channel for term in signal.terms):
            raise LoweringError(f"{pending.path} reads concatenated channels in groups")
        paths: list[str] = []
        for term in signal.terms:
            bias = None if pending.bias is None or paths else self.to_dtype(pending.bias)
            node = Synapse(
                self.to_dtype(
                    absorb(pending.weight, term, channels=signal.channels, groups=groups)
                ),
                bias,
                max_input=term.max_size,
                has_time=signal.has_time,
                **pending.geometry,
            )
            paths.append(self._network.add(pending.path, node, term.source))
        path = paths[0]
        if len(paths) > 1:
            path = self._network.add(f"{pending.path}_merge", Merge(), *paths)
        for pool, window in pending.pools:
            path = self.add_pool(pool, window, path, signal)
        channels = len(pending.weight)
        made = self.currents(path, pending.layout, channels=channels, space=pending.space)
        self._built[id(pending)] = pending, made  # held, so that its id is not reused
        return made

    def add_pool(self, path: str, window: PoolArgs, source: str, signal: SymbolicValue) -> str:
        """Add a pool of one term; return its path."""
        node = Pool(
            "max" if window.is_max else "sum",
            kernel=(window.kernel[0], window.kernel[1]),
            stride=(window.stride[0], window.stride[1]),
            padding=(window.padding[0], window.padding[1]),
            has_time=signal.has_time,
        )
        return self._network.add(path, node, source)

    def as_currents(
        self, signal: SymbolicValue, path: str, *, flatten: bool = False
    ) -> ScaledInput:
        """Return the value as the currents of one node.

        Args:
            signal: the value.
            path: of its reader.
            flatten: return features even if all nodes give maps of one pixel.
        """
        terms = self._currents(signal, path, f"{path}_shortcut", flatten)
        if len(terms) == 1:
            return terms[0]
        merged = self._network.add(f"{path}_merge", Merge(), *(term.source for term in terms))
        return replace(terms[0], source=merged)

    def all_currents(self, signal: SymbolicValue, path: str, name: str) -> list[ScaledInput]:
        """Return the value as currents of several nodes, to be added."""
        return self._currents(signal, path, name, False)

    def _currents(
        self, signal: SymbolicValue, path: str, name: str, flatten: bool
    ) -> list[ScaledInput]:
        """Return currents whose sum is the value: all maps, or all features."""
        where = path or "the network itself"
        if any(term.first_channel or term.channels < signal.channels for term in signal.terms):
            raise LoweringError(f"concatenated channels enter {where} without a synapse")
        kinds = {signal.positions(term) for term in signal.terms}
        flatten = flatten and signal.is_flat
        if (flatten or len(kinds) > 1) and kinds - {0, 1}:
            raise LoweringError(
                f"features of flattened maps enter {where} without a linear layer; put one before "
                f"it, or average over the space before the flatten"
            )
        is_mixed = flatten or len(kinds) > 1
        return [self._current(term, signal, name, is_mixed) for term in signal.terms]

    def _current(
        self, term: ScaledInput, signal: SymbolicValue, name: str, flatten: bool
    ) -> ScaledInput:
        flatten = flatten and signal.positions(term) == 1
        if term.is_current and not flatten:
            return term
        given: dict[str, Any] = {"max_input": term.max_size, "has_time": signal.has_time}
        if flatten:  # a linear layer: one weight per channel, on its diagonal
            diagonal = torch.diag(term.scale.expand(term.channels))
            node = Synapse(self.to_dtype(diagonal), **given)
        else:
            node = Shortcut(self.to_dtype(term.scale), **given)
        source = self._network.add(name, node, term.source)
        space = () if flatten else term.space
        return replace(term, source=source, scale=unit_scale(), max_size=None, space=space)

    def currents(
        self, path: str, layout: Layout, *, channels: int, space: tuple[int, ...]
    ) -> SymbolicValue:
        """Return the currents that a node gives as a value."""
        term = ScaledInput(
            source=path, scale=unit_scale(), max_size=None, channels=channels, space=space
        )
        return SymbolicValue(terms=(term,), layout=layout)

    def to_dtype(self, values: Tensor) -> Tensor:
        """Return a copy in the dtype of the network."""
        return values.to(self._dtype).clone()
