"""Record runs of a network: the values that enter and leave every module, in order.

The first value that differs between two runs names the responsible module. It is the module that
returned the value or, if a module received it, the module whose code computed it in between.
"""

import math
import random
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from lbq.neurons.watch import removing_hooks

TOLERANCE = 1e-6
"""Largest difference between equal values, relative to the largest."""


@dataclass(frozen=True, eq=False)
class Event:
    """The values that entered or left a module in one call."""

    kind: Literal["in", "out"]
    path: str
    caller: str
    """The module in whose code it was called."""
    values: tuple[Tensor, ...]

    @property
    def responsible(self) -> str:
        """Return the path of the module that computed the values."""
        return self.path if self.kind == "out" else self.caller

    def is_like(self, other: "Event") -> bool:
        """Return whether it is the same place of a run."""
        return (self.kind, self.path, len(self.values)) == (
            other.kind, other.path, len(other.values),
        )  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """The first value that differs between two runs."""

    path: str
    """Path of the responsible module."""
    share: float
    """Share of the values that differ."""
    largest: float
    """Largest difference, relative to the largest value."""
    before: str = ""
    """The module that received the value, if another one computed it."""

    @property
    def place(self) -> str:
        """Return the path for a sentence."""
        where = self.path or "the network itself"
        return f"{where}, in its code before {self.before}" if self.before else where

    def evidence(self) -> dict[str, Any]:
        """Return the numbers."""
        return {"module": self.path, "values": self.share, "largest": self.largest}


Parts = Callable[[Tensor, Tensor], list[tuple[Tensor, Tensor]]]
"""Which parts of two values to compare, under several readings of their axes: in one of them they
must be equal. No reading: they cannot be compared."""


class Run(list[Event]):
    """The events of a run; the last holds the outputs of the network."""

    unreadable: tuple[str, ...] = ()
    """Types of outputs that are not tensors, numbers, or collections of them."""

    @property
    def answers(self) -> tuple[Tensor, ...]:
        """Return the outputs of the network."""
        return self[-1].values


@torch.no_grad()
def record(
    model: nn.Module, inputs: Tensor, change: Callable[[int, Any], Any] | None = None
) -> Run:
    """Run a network from fixed random numbers; return its events.

    Args:
        model: the network. Its stored state may change.
        inputs: inputs of the network.
        change: gets the number of an event and its arguments or outputs, and returns the same or
            others.
    """
    run, stack = Run(), list[str]()
    last: list[tuple[Tensor, int | None, Tensor]] = []
    """Values of the last event, their versions and copies."""

    def kept(value: Tensor) -> Tensor:
        """Copy a value, unless it comes straight from the event before."""
        version = _version(value)
        for before, its_version, copied in last:
            if before is value and version is not None and version == its_version:
                return copied
        return value.detach().clone()

    def see(kind: Literal["in", "out"], path: str, values: Any) -> Any:
        if change is not None:
            values = change(len(run), values)
        caller = stack[-1] if stack else ""
        given = list(tensors_and_numbers(values))
        copies = tuple(map(kept, given))
        last[:] = [(one, _version(one), two) for one, two in zip(given, copies, strict=True)]
        run.append(Event(kind, path, caller, copies))
        return values

    def hooks(path: str, module: nn.Module) -> Iterator[Any]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            given = see("in", path, (args, kwargs))
            stack.append(path)
            return given

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            if not stack:  # an exception ended the calls
                return output
            stack.pop()
            return see("out", path, output)

        yield module.register_forward_pre_hook(enter, with_kwargs=True)
        yield module.register_forward_hook(leave)

    added = [h for path, m in hookable_modules(model) for h in hooks(path, m)]
    with removing_hooks(added), fixed_random_numbers():
        output = model(inputs)
    run.unreadable = tuple(sorted({type(value).__name__ for value in _unreadable(output)}))
    return run


def hookable_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that take hooks, with their paths: all but those of TorchScript."""
    return [
        (path, module)
        for path, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]


@contextmanager
def fixed_random_numbers() -> Generator[None]:
    """Seed all generators inside the block; restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 -- what models may use
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def first_difference(expected: Run, found: Run, parts: Parts | None = None) -> Difference | None:
    """Return the first value that differs; None if all are equal.

    Runs with other calls (a loop over samples, say) are compared by their answers only.

    Args:
        expected: one run.
        found: another.
        parts: which parts of two values to compare; by default all.
    """
    pairs = list(zip(expected, found, strict=False))
    if len(expected) != len(found) or not all(one.is_like(two) for one, two in pairs):
        pairs = [(expected[-1], found[-1])]
        if len(expected.answers) != len(found.answers):
            return Difference("", 1.0, float("inf"))
    known = set[tuple[int, int]]()
    """Pairs that are equal; a value that leaves one module for the next stands in both events."""
    for one, two in pairs:
        for mine, theirs in zip(one.values, two.values, strict=True):
            options = [(mine, theirs)] if parts is None else parts(mine, theirs)
            if (id(mine), id(theirs)) in known and one is not pairs[-1][0]:
                continue
            if one is not pairs[-1][0]:  # an empty state that is filled later, say
                options = [(a, b) for a, b in options if a.shape == b.shape]
            gaps = [difference(*option) for option in options]
            if gaps and None not in gaps:
                share, largest = min(gap for gap in gaps if gap is not None)
                before = one.path if one.kind == "in" else ""
                return Difference(one.responsible, share, largest, before)
            known.add((id(mine), id(theirs)))
    return None


def difference(mine: Tensor, theirs: Tensor) -> tuple[float, float] | None:
    """Return the share of values that differ and the largest difference, or None."""
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return 1.0, float("inf")
    if not mine.is_floating_point() and not mine.is_complex():
        wrong = mine != theirs
        return (float(wrong.double().mean()), 1.0) if bool(wrong.any()) else None
    if _is_close(mine, theirs):
        return None
    scale = max(1e-30, float(mine.abs().nan_to_num(0, 0, 0).max()) if mine.numel() else 0.0)
    gap = (mine - theirs).abs() / scale
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())  # infinities too
    wrong = ~(gap <= TOLERANCE) & ~same
    if not bool(wrong.any()):
        return None
    return float(wrong.double().mean()), float(gap.nan_to_num(float("inf"))[wrong].max())


def _version(value: Tensor) -> int | None:
    """Return how often a tensor was written into; None if torch does not count it."""
    return None if value.is_inference() else value._version


def _is_close(mine: Tensor, theirs: Tensor) -> bool:
    """Return True only for finite values within the tolerance; it reads them three times."""
    if mine.numel() == 0 or mine.is_complex():
        return mine.numel() == 0
    largest = max(abs(float(end)) for end in mine.aminmax())
    gap = float((mine - theirs).abs_().max())
    return math.isfinite(largest) and gap <= TOLERANCE * max(1e-30, largest)


def tensors_and_numbers(value: Any) -> Iterator[Tensor]:
    """Yield the tensors and numbers of arguments or an output, in order."""
    if isinstance(value, Tensor):
        yield value if value.layout is torch.strided else value.to_dense()
    elif isinstance(value, bool | int | float | complex):
        yield torch.tensor(value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield torch.from_numpy(value)
    else:
        for item in _items(value):
            yield from tensors_and_numbers(item)


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(cast(dict[Any, Any], value).values())
    if isinstance(value, list | tuple):
        return list(cast(Sequence[Any], value))
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name) for f in fields(value)]
    return []


def _unreadable(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor | bool | int | float | complex | str | None | np.ndarray):
        return
    if not isinstance(value, dict | list | tuple) and not is_dataclass(value):
        yield value
    for item in _items(value):
        yield from _unreadable(item)


def in_float64(model: nn.Module) -> nn.Module:
    """Convert a network in place, without torch's wrong warning about TorchScript."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
        return model.double()
