"""``Carries``: the state of a network's neurons while it runs one timestep at a time."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor

from lbq.errors import TimeError

_active: ContextVar["Carries | None"] = ContextVar("carries", default=None)


@runtime_checkable
class Streamed(Protocol):
    """A neuron, trained or lowered."""

    def stream(self, currents: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the bursts of a part of a sequence and its last carry; None starts from rest."""
        ...


class Carries:
    """The carries of a network's neurons between two timesteps; starts at rest.

    A neuron called inside :meth:`timestep` continues from the carry of its previous timestep. A
    neuron that forward calls several times has one carry per call, because each of these calls
    starts a sequence from rest.

    Args:
        paths: the network's neurons, with their paths.
        copies: how often the batch is repeated, as :func:`lbq.stream` explains. Timestep t reads
            copy t, and after each timestep a copy's carry moves on to the next copy.
    """

    def __init__(self, paths: Mapping[Any, str], *, copies: int = 1) -> None:
        self.copies = copies
        self._paths = paths
        self._last: dict[Streamed, list[Tensor]] | None = None
        self._next: dict[Streamed, list[Tensor]] = {}

    @contextmanager
    def timestep(self) -> Generator[None]:
        """Continue from these carries inside the block; an exception leaves them unchanged.

        The block affects this thread (or asyncio task) only.
        """
        self._next = {}
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)
        if not self._next:
            raise TimeError(
                "the network called none of its neurons in this thread, so no state passes to the "
                "next timestep; if an adapter holds the state of a neuron, stream through the "
                "adapter"
            )
        for neuron, carries in (self._last or {}).items():
            if len(self._next.get(neuron, [])) != len(carries):
                self._raise_other_calls(neuron)
        self._last = self._next

    def advance(self, neuron: Streamed, currents: Tensor) -> tuple[Tensor, Tensor]:
        """Run one timestep of a neuron from its carry; return bursts and carry."""
        if len(currents) != 1:
            raise TimeError(
                f"a stream runs one timestep at a time, and the neuron {self._path(neuron)} "
                f"received currents of shape {list(currents.shape)}, time first; mark the time "
                f"axis with RepeatOverTime and OverTime, which follow a stream"
            )
        calls = self._next.setdefault(neuron, [])
        carry = None
        if self._last is not None:
            known = self._last.get(neuron, [])
            if len(calls) == len(known):
                self._raise_other_calls(neuron)
            carry = known[len(calls)]
        token = _active.set(None)
        try:
            bursts, carry = neuron.stream(currents, carry)
        finally:
            _active.reset(token)
        if self.copies > 1:
            batch_axis = carry.dim() - (currents.dim() - 1)  # 1 with a membrane per threshold
            carry = carry.roll(currents.shape[1] // self.copies, batch_axis)
        calls.append(carry)
        return bursts, carry

    def repeat(self, current: Tensor) -> Tensor:
        """Return one timestep of a static current: ``[B, ...]`` to ``[1, B * copies, ...]``."""
        copied = torch.cat([current] * self.copies)  # keeps the memory format
        return copied.unsqueeze(0)

    def _path(self, neuron: Streamed) -> str:
        return self._paths.get(neuron) or type(neuron).__name__

    def _raise_other_calls(self, neuron: Streamed) -> NoReturn:
        raise TimeError(
            f"the neuron {self._path(neuron)} was called more or fewer times than at the previous "
            f"timestep, so its carries are ambiguous; a network can be streamed if every "
            f"timestep calls the same neurons"
        )


def active_carries() -> Carries | None:
    """Return the carries of the stream that is running; None outside of streams."""
    return _active.get()


# torch.compile cannot read a context variable; streams run uncompiled (see lbq.kernels.scan)
active_carries._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
