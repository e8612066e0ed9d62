"""Making nodes of signals: synapses of drafts, shortcuts of levels, merges of sums."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.nodes import Merge, Pool, Shortcut, Synapse
from lbq.deploy.pool_args import PoolArgs
from lbq.errors import LoweringError
from lbq.functional.planes import absorb_step

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


def batch_norm_affine(norm: nn.BatchNorm1d | nn.BatchNorm2d, *, path: str) -> tuple[Tensor, Tensor]:
    """Return the gain and the offset per channel that a batch norm applies in eval mode."""
    if norm.running_mean is None or norm.running_var is None:
        raise LoweringError(
            f"{path} has no running statistics, so what it does depends on the batch; train it "
            f"with track_running_stats=True"
        )
    gain = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:  # pyright: ignore[reportUnnecessaryComparison] -- affine=False
        gain = gain * norm.weight.double()
    offset = -norm.running_mean.double() * gain
    if norm.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
        offset = offset + norm.bias.double()
    return gain.detach(), offset.detach()


def fold_batch_norm(
    weight: Tensor, bias: Tensor | None, gain: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the synapse that does what both did one after the other."""
    scaled = weight.double() * gain.reshape(-1, *[1] * (weight.dim() - 1))
    if bias is None:
        return scaled, offset
    return scaled, torch.addcmul(offset, bias.double(), gain)


def one() -> Tensor:
    """Return the scale of what is not scaled."""
    return torch.ones(1, dtype=torch.float64)


class GraphBuilder:
    """Adds to a network the nodes that signals are carried by.

    Args:
        network: grows.
        dtype: of the numbers that nodes hold.
    """

    def __init__(self, network: LoweredNetwork, dtype: torch.dtype) -> None:
        self._network, self._dtype = network, dtype
        self._settled: dict[int, tuple[PendingSynapse, SymbolicValue]] = {}

    def settle(self, draft: PendingSynapse) -> SymbolicValue:
        """Make the synapses of a draft, one for each term that enters, and add them up."""
        if id(draft) in self._settled:
            return self._settled[id(draft)][1]
        signal, groups = draft.inputs, draft.geometry.get("groups", 1)
        if groups > 1 and any(term.first_channel for term in signal.terms):
            raise LoweringError(f"{draft.path} reads concatenated channels in groups")
        paths: list[str] = []
        for term in signal.terms:
            bias = None if draft.bias is None or paths else self.stored(draft.bias)
            node = Synapse(
                self.stored(absorb(draft.weight, term, channels=signal.channels, groups=groups)),
                bias,
                max_input=term.max_size,
                has_time=signal.axes != "still",
                **draft.geometry,
            )
            paths.append(self._network.add(draft.path, node, term.source))
        path = paths[0]
        if len(paths) > 1:
            path = self._network.add(f"{draft.path}_merge", Merge(), *paths)
        for pool, window in draft.pools:
            path = self.add_pool(pool, window, path, signal)
        made = self.currents(path, like=signal, channels=len(draft.weight))
        made = replace(made, is_flat=draft.is_linear)
        self._settled[id(draft)] = draft, made  # the draft is held, so its id stays its own
        return made

    def add_pool(self, path: str, window: PoolArgs, source: str, signal: SymbolicValue) -> str:
        """Add the node that pools one term of a signal; return its path."""
        node = Pool(
            "max" if window.is_max else "sum",
            kernel=window.kernel,
            stride=window.stride,
            padding=window.padding,
            has_time=signal.axes != "still",
        )
        return self._network.add(path, node, source)

    def as_currents(
        self, signal: SymbolicValue, path: str, *, flatten: bool = False
    ) -> ScaledInput:
        """Return the signal as one term of currents, from one node.

        Args:
            signal: what to make currents of.
            path: of what reads them.
            flatten: give features even where all nodes give maps of one pixel.
        """
        terms = self._currents(signal, path, f"{path}_shortcut", flatten)
        if len(terms) == 1:
            return terms[0]
        merged = self._network.add(f"{path}_merge", Merge(), *(term.source for term in terms))
        return replace(terms[0], source=merged)

    def all_currents(self, signal: SymbolicValue, path: str) -> list[ScaledInput]:
        """Return terms of currents whose sum, inside a module, is the signal."""
        return self._currents(signal, path, f"{path}.shortcut".lstrip("."), False)

    def _currents(
        self, signal: SymbolicValue, path: str, name: str, flatten: bool
    ) -> list[ScaledInput]:
        """Return terms of currents whose sum is the signal: all maps, or all features."""
        where = path or "the network itself"
        if any(term.first_channel or term.channels < signal.channels for term in signal.terms):
            raise LoweringError(f"concatenated channels enter {where} without a synapse")
        kinds = {term.positions for term in signal.terms}
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
        flatten = flatten and term.positions == 1
        if term.is_current and not flatten:
            return term
        given: dict[str, Any] = {
            "max_input": term.max_size,
            "has_time": signal.axes != "still",
        }
        if flatten:  # a linear layer: one weight per channel, on its diagonal
            diagonal = torch.diag(term.scale.expand(term.channels))
            node = Synapse(self.stored(diagonal), **given)
        else:
            node = Shortcut(self.stored(term.scale), **given)
        source = self._network.add(name, node, term.source)
        positions = 0 if flatten else term.positions
        return replace(term, source=source, scale=one(), max_size=None, positions=positions)

    def currents(self, path: str, *, like: SymbolicValue, channels: int) -> SymbolicValue:
        """Return what a node gives as a signal with the axes of another."""
        term = ScaledInput(source=path, scale=one(), max_size=None, channels=channels)
        return replace(like, terms=(term,))

    def stored(self, values: Tensor) -> Tensor:
        """Return numbers as nodes hold them."""
        return values.to(self._dtype).clone()
