"""Making nodes of signals: synapses of drafts, shortcuts of levels, merges of sums."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lbq.deploy.absorb import Draft, Signal, Term, absorb
from lbq.deploy.network import LoweredNetwork
from lbq.deploy.nodes import Merge, Shortcut, Synapse
from lbq.errors import LoweringError


def one() -> Tensor:
    """Return the scale of what is not scaled."""
    return torch.ones(1, dtype=torch.float64)


class Wiring:
    """Adds to a network the nodes that signals are carried by.

    Args:
        network: grows.
        dtype: of the numbers that nodes hold.
    """

    def __init__(self, network: LoweredNetwork, dtype: torch.dtype) -> None:
        self._network, self._dtype = network, dtype
        self._settled: dict[int, tuple[Draft, Signal]] = {}

    def settle(self, draft: Draft) -> Signal:
        """Make the synapses of a draft, one for each term that enters, and add them up."""
        if id(draft) in self._settled:
            return self._settled[id(draft)][1]
        layer, signal = draft.layer, draft.inputs
        groups = layer.groups if isinstance(layer, nn.Conv2d) else 1
        if groups > 1 and any(term.first_channel for term in signal.terms):
            raise LoweringError(f"{draft.path} reads concatenated channels in groups")
        paths: list[str] = []
        for term in signal.terms:
            shape: dict[str, Any] = {}
            if isinstance(layer, nn.Conv2d):
                shape = {k: getattr(layer, k) for k in ("stride", "padding", "dilation", "groups")}
            bias = None if draft.bias is None or paths else self.stored(draft.bias)
            node = Synapse(
                self.stored(absorb(draft.weight, term, channels=signal.channels, groups=groups)),
                bias,
                max_input=term.max_size,
                is_still=signal.axes == "still",
                **shape,
            )
            paths.append(self._network.add(draft.path, node, term.source))
        path = paths[0]
        if len(paths) > 1:
            path = self._network.add(f"{draft.path}_merge", Merge(), *paths)
        made = self.currents(path, like=signal, channels=len(draft.weight))
        made = replace(made, is_flat=isinstance(layer, nn.Linear))
        self._settled[id(draft)] = draft, made  # the draft is held, so its id stays its own
        return made

    def as_currents(self, signal: Signal, path: str) -> str:
        """Return the path of one node that gives the signal as currents."""
        names = self.all_currents(signal, path)
        if len(names) == 1:
            return names[0]
        return self._network.add(f"{path}_merge", Merge(), *names)

    def all_currents(self, signal: Signal, path: str) -> list[str]:
        """Return the paths of nodes whose sum is the signal, as currents."""
        if any(term.first_channel or term.channels < signal.channels for term in signal.terms):
            raise LoweringError(
                f"concatenated channels enter {path or 'the network itself'} without a synapse"
            )
        return [self._current(term, signal, path) for term in signal.terms]

    def _current(self, term: Term, signal: Signal, path: str) -> str:
        if term.is_current:
            return term.source
        node = Shortcut(
            self.stored(term.scale), max_input=term.max_size, is_still=signal.axes == "still"
        )
        return self._network.add(f"{path}.shortcut".lstrip("."), node, term.source)

    def currents(self, path: str, *, like: Signal, channels: int) -> Signal:
        """Return what a node gives as a signal with the axes of another."""
        term = Term(source=path, scale=one(), max_size=None, channels=channels)
        return replace(like, terms=(term,))

    def stored(self, values: Tensor) -> Tensor:
        """Return numbers as nodes hold them."""
        return values.to(self._dtype).clone()
