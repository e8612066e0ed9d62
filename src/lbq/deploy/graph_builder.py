"""Making nodes of signals: synapses of drafts, shortcuts of levels, merges of sums."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lbq.deploy.absorb import PendingSynapse, ScaledInput, SymbolicValue, absorb
from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.nodes import Merge, Pool, Shortcut, Synapse
from lbq.deploy.pool_args import PoolArgs
from lbq.errors import LoweringError


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
