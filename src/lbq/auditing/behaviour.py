"""Check that the answer to a sample depends on this sample and its past only.

A copy of the network runs in float64 and eval mode, on samples alone, together and again, and with
other values at later timesteps. A neuron that emits nothing would hide its behaviour, so the
currents of such neurons are made positive and larger until they emit; that mixes no samples and no
timesteps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lbq.auditing.finding import Finding
from lbq.auditing.recording import (
    Difference,
    Parts,
    Run,
    difference,
    first_difference,
    in_float64,
    record,
    tensors_and_numbers,
)
from lbq.neurons.module_state import copy_network, stored_tensors

MOST_TOGETHER = 64
"""Samples that run at once."""
_ALL, _SOME = 16, 4
"""Up to this many samples, all are compared alone; of more, this many."""
_CALLS = 4
_GAINS = (1.0, 8.0, 64.0, 512.0)
"""Tried on the currents of silent neurons."""
_SHARE = 1e-3
"""Share of values that may differ in float32, where rounding moves levels at thresholds."""
_ROUNDING = 1e-4
"""Differences in float32 that are checked in float64."""


class Behaviour:
    """Runs copies of a network and compares the inputs and outputs of their modules.

    Args:
        model: any network with one input. It is not changed.
        samples: at least two different ones.
        batch_axis: axis of the samples, 0 or 1.
        is_neuron: whether a module is a neuron.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: Tensor,
        *,
        batch_axis: int,
        is_neuron: Callable[[str, nn.Module], bool] = lambda path, module: False,
    ) -> None:
        self._model, self._samples, self._axis = model, samples, batch_axis
        self.gains: dict[str, float] = {}
        """Factors on the currents of neurons that are silent otherwise."""
        count = samples.shape[batch_axis]
        few = samples.narrow(batch_axis, 0, count if count <= _ALL else _SOME)
        self.is_float64, self._batch = self._runs_in_float64(few)
        self._alone = self._batch.split(1, batch_axis)
        self._neurons = {path for path, module in model.named_modules() if is_neuron(path, module)}
        self._together = self._drive_silent_neurons()
        self._one = record(self.copy(), self._alone[0])
        self._is_random, self._is_repeatable = self._try_again()

    def _runs_in_float64(self, samples: Tensor) -> tuple[bool, Tensor]:
        if not samples.is_floating_point():
            return True, samples
        try:
            record(in_float64(copy_network(self._model)).eval(), samples.double())
        except RuntimeError:  # code that converts to float32 itself
            return False, samples.float()
        return True, samples.double()

    def _drive_silent_neurons(self) -> Run:
        for gain in _GAINS:
            run, emitted = record(self.copy(), self._batch), set[str]()
            for event in run:
                if event.kind == "out" and any(bool((v != 0).any()) for v in event.values[:1]):
                    emitted.add(event.path)
            silent = self._neurons & {event.path for event in run} - emitted
            if not silent:
                return run
            self.gains |= dict.fromkeys(silent, gain)
        return record(self.copy(), self._batch)

    @torch.no_grad()
    def _try_again(self) -> tuple[bool, bool]:
        """Return whether answers depend on random numbers, and whether seeds repeat them."""
        seeded = self._compare(self._together, record(self.copy(), self._batch))
        plain = [list(tensors_and_numbers(self.copy()(self._batch))) for _ in range(2)]
        same = all(difference(one, two) is None for one, two in zip(*plain, strict=False)) and len(
            plain[0]
        ) == len(plain[1])
        return not same, seeded is None

    def copy(self) -> nn.Module:
        """Return a copy of the network in eval mode with its state; in float64 if possible."""
        model = copy_network(self._model).eval()
        for path, gain in self.gains.items():
            model.get_submodule(path).register_forward_pre_hook(_drive(gain))
        return in_float64(model) if self.is_float64 else model.float()

    def _compare(self, one: Run, two: Run, parts: Parts | None = None) -> Difference | None:
        found = first_difference(one, two, parts)
        return None if found is None else self._confirmed(found)

    def _confirmed(self, found: Difference) -> Difference | None:
        """Return a difference that is not rounding; of a neuron, without the place inside it."""
        if not self.is_float64 and found.share < _SHARE:
            return None
        return replace(found, before="") if found.path in self._neurons else found

    def check_determinism(self) -> Finding:
        """Run two copies on the same samples."""
        count = len(self._alone)
        if not self._is_random and self._is_repeatable:
            return Finding(
                key="determinism",
                verdict="holds",
                sentence=f"The same {count} samples gave the same answers in three runs.",
            )
        found = self._compare(self._together, record(self.copy(), self._batch)) or (
            self._first_random()
        )
        return Finding(
            key="determinism",
            verdict="fails",
            sentence=f"Two runs on the same samples differ, first in {found.place}.",
            module=found.path,
            advice="random numbers in eval mode? dropout with training=True, or a random layer",
            evidence=found.evidence(),
        )

    def _first_random(self) -> Difference:
        """Return where two runs with different random numbers differ."""

        def shift(index: int, values: Any) -> Any:
            if index == 0:
                torch.rand(1)  # all numbers after it are others
            return values

        again = record(self.copy(), self._batch, shift)
        return first_difference(self._together, again) or Difference("", 1.0, float("inf"))

    def check_state(self) -> Finding:
        """Run one copy several times, also on other samples: nothing may survive a call."""
        model, changed, others = self.copy(), set[str](), self._louder()
        why = "state survives the call"
        if not self._is_repeatable:  # new copies differ too
            why += ", outside the network, or it draws numbers that no seed repeats"
        before = stored_tensors(model)
        first = record(model, self._batch)
        for call in range(2, _CALLS + 2):
            after = stored_tensors(model)
            changed |= {name for name, value in after.items() if _is_new(before.get(name), value)}
            is_other = call == _CALLS  # a cache, or a running maximum, answers the same to the same
            expected = record(self.copy(), others) if is_other else first
            found = self._compare(expected, record(model, others if is_other else self._batch))
            if found is not None:
                what = f"Call {call} on the same samples differs from the first"
                if is_other:
                    what = f"Call {call}, on other samples, differs from a first call on them"
                return Finding(
                    key="state",
                    verdict="fails",
                    sentence=f"{what}, first in {found.place}: {why}.",
                    module=found.path,
                    advice="reset the neurons before every call (functional.reset_net in "
                    "SpikingJelly)",
                    evidence={**found.evidence(), "stored": sorted(changed)},
                )
        return Finding(
            key="state",
            verdict="holds",
            sentence=f"{_CALLS} calls on the same {len(self._alone)} samples gave the same "
            f"answers, the last behind a call on others: no state survives a call.",
            evidence={"stored": sorted(changed)},
        )

    def _louder(self) -> Tensor:
        """Return other samples of the same shape, larger ones if they are real numbers."""
        turned = self._batch.flip(self._axis)
        return turned * 1.5 if turned.is_floating_point() else turned

    # batch

    def check_batch(self, answers: list[list[Tensor]] | None = None) -> Finding:
        """Run samples alone, side by side and in another order.

        Args:
            answers: outputs for all samples, in float32, in batches of at most 64; they are
                compared with those of other batches.
        """
        if not self._is_repeatable:
            return Finding(
                key="leak",
                verdict="unknown",
                sentence="not checked: two runs on the same samples differ, whatever the batch.",
            )
        found = self._mixed() if self._is_random else self._alone_and_together()
        tried = f"{len(self._alone)} samples"
        tried += " with other neighbours" if self._is_random else " alone, together and reversed"
        shapes = [(one.shape, many.shape) for one, many in self._answers()]
        if found is None and not self._is_random and answers is not None:
            count = self._samples.shape[self._axis]
            if count > len(self._alone):
                found = self._shuffled(answers)
                tried += f"; all {count:,} in batches of {MOST_TOGETHER}, in order and shuffled"
        if found is not None:
            return Finding(
                key="leak",
                verdict="fails",
                sentence=f"The answer to a sample depends on the other samples of its batch, "
                f"first in {found.place}.",
                module=found.path,
                advice="does a neuron take the batch as time, or a norm the statistics of the "
                "batch? Time and batch must not be merged before a neuron",
                evidence=found.evidence(),
            )
        unclear = [f"{list(a)} and {list(b)}" for a, b in shapes if len(a) != len(b)]
        unclear += [f"a {kind}" for kind in self._together.unreadable]
        if unclear or not shapes:
            return Finding(
                key="leak",
                verdict="unknown",
                sentence=f"not checked: outputs that cannot be compared between one sample and "
                f"several ({', '.join(unclear) or 'there are none'}).",
            )
        whole = sum(a == b for a, b in shapes)
        words = f"The answer to a sample does not depend on its batch ({tried})."
        if whole == len(shapes):
            return Finding(
                key="leak",
                verdict="unknown",
                sentence="not checked: no output has an axis of samples.",
            )
        if whole:
            words += f" {whole} of {len(shapes)} outputs have no axis of samples."
        return Finding(key="leak", verdict="holds", sentence=words)

    def _answers(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._one.answers, self._together.answers, strict=False))

    def _alone_and_together(self) -> Difference | None:
        count = len(self._alone)
        swapped = record(self.copy(), self._batch.flip(self._axis))
        for place, sample in enumerate(self._alone):
            alone = record(self.copy(), sample)
            for run, at in ((self._together, place), (swapped, count - 1 - place)):
                found = self._compare(alone, run, of_sample(at, count))
                if found is not None:
                    return found
        weak = self._alone[0] * 0.05 if self._batch.is_floating_point() else self._alone[0] * 0
        beside = torch.cat([weak, *self._alone[1:]], self._axis)
        alone, together = (record(self.copy(), x) for x in (weak, beside))
        return self._compare(alone, together, of_sample(0, count))

    def _mixed(self) -> Difference | None:
        """Replace every other sample: with the same shapes, the same random numbers are drawn."""
        count, axis = len(self._alone), self._axis
        for kept in (0, 1):
            others = [
                self._alone[n] if n % 2 == kept else 0.5 * self._alone[(n + 1) % count]
                for n in range(count)
            ]
            mixed = record(self.copy(), torch.cat(others, axis).to(self._batch))
            shapes = iter(
                [v for event in self._one for v in event.values]
                if len(self._one) == len(self._together)
                else self._one.answers
            )

            def parts(mine: Tensor, theirs: Tensor, kept: int = kept) -> list[Any]:
                one = next(shapes)  # noqa: B023 -- compared before the next round
                options = [
                    list(zip(of_sample(n, count)(one, mine), of_sample(n, count)(one, theirs),
                             strict=True))
                    for n in range(kept, count, 2)
                ]  # fmt: skip
                return [
                    (torch.stack([m[1] for m, _ in option]), torch.stack([t[1] for _, t in option]))
                    for option in zip(*options, strict=True)
                ]

            found = self._compare(self._together, mixed, parts)
            if found is not None:
                return found
        return None

    @torch.no_grad()
    def _shuffled(self, answers: list[list[Tensor]]) -> Difference | None:
        """Compare all samples with themselves in other batches, in float32 first."""
        axis, count = self._axis, self._samples.shape[self._axis]
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        shuffled = self._samples.index_select(axis, order.to(self._samples.device))
        found = [
            list(tensors_and_numbers(copy_network(self._model).eval()(some)))
            for some in shuffled.split(MOST_TOGETHER, axis)
        ]
        for index, (one, many) in enumerate(self._answers()):
            axes = _grown(one, many, len(self._alone))
            if len(axes) != 1 or one.shape[axes[0]] != 1:
                continue
            mine, theirs = (torch.cat([a[index] for a in run], axes[0]) for run in (answers, found))
            mine = mine.index_select(axes[0], order.to(mine.device)).double()
            gap = (mine - theirs.double()).abs() / max(1e-30, float(mine.abs().max()))
            worst = gap.movedim(axes[0], 0).flatten(1).amax(1)
            if bool((worst > _ROUNDING).any()):
                place = int(worst.argmax())
                together = self._confirm(order, place)
                if together is not None:
                    return together
        return None

    def _confirm(self, order: Tensor, place: int) -> Difference | None:
        """Compare one sample alone and in its shuffled batch, in float64."""
        first = place - place % MOST_TOGETHER
        some = order[first : first + MOST_TOGETHER].to(self._samples.device)
        batch = self._samples.index_select(self._axis, some)
        if self.is_float64 and batch.is_floating_point():
            batch = batch.double()
        alone = record(self.copy(), batch.narrow(self._axis, place - first, 1))
        together = record(self.copy(), batch)
        return self._compare(alone, together, of_sample(place - first, len(some)))

    # time

    def check_causality(self) -> Finding:
        """Change later timesteps; compare the values of every module before them."""
        place = self._find_time()
        if place is None:
            return Finding(
                key="causality",
                verdict="unknown",
                sentence="not checked: neither the input nor a value of the network is a sequence "
                "of two or more timesteps, time first.",
            )
        if not self._is_repeatable:
            return Finding(
                key="causality",
                verdict="unknown",
                sentence="not checked: two runs on the same samples differ, whatever the time.",
            )
        compared, unclear = set[str](), set[str]()
        for k in sorted({1, place.timesteps // 2, place.timesteps - 1}):
            for change in _CHANGES:
                after = record(self.copy(), self._batch, place.changing(k, change))
                parts = _BeforeK(self._one, self._together, place, k, len(self._alone))
                seen = parts.first_difference(after)
                compared |= parts.compared
                unclear |= parts.unclear
                found = None if seen is None else self._confirmed(seen)
                if found is not None:
                    return Finding(
                        key="causality",
                        verdict="fails",
                        sentence=f"Timesteps from {k + 1} on change earlier ones, first in "
                        f"{found.place}.",
                        module=found.path,
                        advice="a norm, mean or mixture over time needs the whole sequence: such a "
                        "network cannot be streamed",
                        evidence=found.evidence(),
                    )
        doubt = self._doubt(place, compared, unclear)
        if doubt:
            return Finding(key="causality", verdict="unknown", sentence=f"not checked: {doubt}.")
        where = place.path and f" of module {place.path}"
        return Finding(
            key="causality",
            verdict="holds",
            sentence=f"Other values at later timesteps{where} changed nothing at earlier ones "
            f"({place.timesteps} timesteps, seen in {len(compared)} module(s)).",
            evidence={"timesteps": place.timesteps, "modules": sorted(compared)},
        )

    def _doubt(self, place: "_Place", compared: set[str], unclear: set[str]) -> str:
        """Return why the result is unknown although no difference was found, if it is."""
        if unclear:
            some = ", ".join(sorted(unclear)[:3])
            return f"which call of {some} belongs to which timestep (a second pass over time?)"
        if not compared:
            return "no value behind the sequence has an axis of time"
        found = self._along_input(place)
        if found is None:
            return ""
        axis, place_of = found
        return (
            f"axis {axis} of the input is as long as the {place.timesteps} timesteps; if it is "
            f"time, later timesteps change earlier ones, first in {place_of}: pass time first"
        )

    def _along_input(self, place: "_Place") -> tuple[int, str] | None:
        """Return an axis of the input that may be time, and where it is mixed; None if none is.

        The input may have time behind the batch. That is tried if the first sequence in the
        network has other values at every timestep, so that it was not repeated from an image.
        """
        first = self._together[place.event].values[0]
        if place.event == 0 or bool((first == first[:1]).all()):
            return None
        sizes = enumerate(self._batch.shape)
        axes = [n for n, size in sizes if n != self._axis and size == place.timesteps]
        found: list[tuple[int, str]] = []
        for axis in axes:
            whole, k = _Place(0, "", axis, place.timesteps), place.timesteps // 2
            after = record(self.copy(), self._batch, whole.changing(k, _larger))
            parts = _BeforeK(self._one, self._together, whole, k, len(self._alone))
            seen = parts.first_difference(after)
            seen = None if seen is None else self._confirmed(seen)
            if seen is None:
                return None  # this one is time, and not mixed
            found.append((axis, seen.place))
        return found[0] if found else None

    def _find_time(self) -> "_Place | None":
        """Return the first value that has an axis of time, beginning with the input."""
        calls = {
            sum(e.kind == "out" and e.path == path for e in self._together)
            for path in self._neurons
        } - {0, 1}
        axes = [n for n, size in enumerate(self._batch.shape) if {size} == calls]
        axes = [n for n in axes if n != self._axis]
        if self._axis == 1 and len(self._batch) > 1:
            return _Place(0, "", 0, len(self._batch))
        if len(axes) == 1:  # a loop over one axis of the input
            return _Place(0, "", axes[0], self._batch.shape[axes[0]])
        for index, (one, many) in enumerate(zip(self._one, self._together, strict=False)):
            if not one.is_like(many):
                return None
            for single, several in zip(one.values[:1], many.values[:1], strict=True):
                is_real = several.is_floating_point()
                if is_real and _is_sequence(single, several, len(self._alone)):
                    name = one.path if one.kind == "in" else f"{one.path} on"
                    return _Place(index, name.replace(" on", ""), 0, len(several))
        return None


@dataclass(frozen=True)
class _Place:
    """A value with an axis of time."""

    event: int
    path: str
    axis: int
    timesteps: int

    def changing(self, k: int, change: Callable[[Tensor], Tensor]) -> Callable[[int, Any], Any]:
        """Return how a run changes the value from timestep k on."""

        def change_later(index: int, values: Any) -> Any:
            if index != self.event:
                return values
            leaves, form = tree_flatten(values)
            at = next(n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
            changed = leaves[at].clone()
            later = changed.narrow(self.axis, k, self.timesteps - k)
            later.copy_(change(later.flip(self.axis)))
            leaves[at] = changed
            return tree_unflatten(leaves, form)

        return change_later


def _larger(later: Tensor) -> Tensor:
    if not later.is_floating_point():
        return later + 1
    return later * 1.5 + 0.25 * later.abs().max().clamp_min(1e-3)


def _opposite(later: Tensor) -> Tensor:
    if not later.is_floating_point():
        return later * 0
    return -later - 0.5 * later.abs().max().clamp_min(1e-3)


_CHANGES = (_larger, _opposite)


class _BeforeK:
    """Compares the values before timestep k in two runs."""

    def __init__(self, one: Run, together: Run, place: _Place, k: int, count: int) -> None:
        self._one, self._together = one, together
        self._timesteps, self._k, self._count = place.timesteps, k, count
        self._start, self._may_loop = place.event, place.event == 0
        """Whether a module may be called once per timestep: there is a loop over the input."""
        self.compared = set[str]()
        """Modules after the sequence whose values were compared."""
        self._orders: dict[str, set[str]] = {}
        """Orders in which the calls of a module can be those of the timesteps."""

    def first_difference(self, after: Run) -> Difference | None:
        """Return the first value before timestep k that differs."""
        if len(self._one) != len(self._together) or len(after) != len(self._together):
            return None
        calls, total = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
        for event in after:
            total[event.kind, event.path] = total.get((event.kind, event.path), 0) + 1
        for index, (event, later) in enumerate(zip(self._together, after, strict=True)):
            key = (event.kind, event.path)
            call = calls[key] = calls.get(key, -1) + 1
            values = zip(self._one[index].values, event.values, later.values, strict=False)
            for one, mine, theirs in values:
                options = list(self._before(one, mine, theirs))
                is_step = self._may_loop and total[key] == self._timesteps
                if not options and is_step and call < self._k:
                    options = [(mine, theirs)]
                elif not options and self._may_loop and total[key] > self._timesteps:
                    self._look_at_passes(event.path, call, total[key], mine, theirs)
                gaps = [difference(*option) for option in options]
                if gaps and index > self._start:
                    self.compared.add(event.path)
                if gaps and None not in gaps:
                    share, largest = min(gap for gap in gaps if gap is not None)
                    path = self._responsible(index, after) or event.responsible
                    is_inside = event.kind == "in" and path == event.responsible
                    before = event.path if is_inside else ""
                    return Difference(path, share, largest, before)
        return None

    def _look_at_passes(
        self, path: str, call: int, calls: int, mine: Tensor, theirs: Tensor
    ) -> None:
        """Compare a call of a module that is called several times per timestep.

        Its calls may come step by step or in several passes over time. One of these orders must
        have nothing that differs before timestep k.
        """
        passes, rest = divmod(calls, self._timesteps)
        orders = self._orders.setdefault(path, set() if rest else {"steps", "passes"})
        if difference(mine, theirs) is not None:
            if call < passes * self._k:
                orders.discard("steps")
            if call % self._timesteps < self._k:
                orders.discard("passes")
        if orders:
            self.compared.add(path)

    @property
    def unclear(self) -> set[str]:
        """Return the modules whose calls belong to timesteps in an order that is not known."""
        return {path for path, orders in self._orders.items() if not orders}

    def _before(self, one: Tensor, mine: Tensor, theirs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the parts before timestep k: of ``[T, B, ...]``, or of ``[T * B, ...]``."""
        if mine.dim() == 0 or one.dim() != mine.dim() or mine.shape != theirs.shape:
            return
        if _is_sequence(one, mine, self._count) and len(mine) == self._timesteps:
            yield mine[: self._k], theirs[: self._k]
        elif len(one) == self._timesteps and len(mine) == self._count * self._timesteps:
            for sizes, axis in (((self._timesteps, -1), 0), ((-1, self._timesteps), 1)):
                yield tuple(v.unflatten(0, sizes).narrow(axis, 0, self._k) for v in (mine, theirs))  # pyright: ignore[reportReturnType]

    def _responsible(self, index: int, after: Run) -> str | None:
        """Return the module before an event that looked ahead along another axis of its values."""
        opened: list[int] = []
        for at in range(index):
            if self._together[at].kind == "in":
                opened.append(at)
                continue
            if not opened:
                return None
            start = opened.pop()
            for axis in range(1, 4):
                entered, left = (self._along(axis, n, after) for n in (start, at))
                if entered is None or left is None or difference(*entered) is not None:
                    continue
                if difference(*left) is not None:
                    return self._together[at].path
        return None

    def _along(self, axis: int, at: int, after: Run) -> tuple[Tensor, Tensor] | None:
        mine, theirs = self._together[at].values[:1], after[at].values[:1]
        if not mine or mine[0].dim() <= axis or mine[0].shape[axis] != self._timesteps:
            return None
        if mine[0].shape != theirs[0].shape:
            return None
        return mine[0].narrow(axis, 0, self._k), theirs[0].narrow(axis, 0, self._k)


def _drive(gain: float) -> Callable[..., Any]:
    def enlarge(module: nn.Module, args: Any) -> Any:
        if not args or not isinstance(args[0], Tensor):
            return None
        return (args[0].abs() * gain, *args[1:])

    return enlarge


def of_sample(place: int, count: int) -> Parts:
    """Return how the value for one sample is taken from that for a batch.

    The axis of the batch is the one that is as many times as long. It may be merged with others,
    samples inside (``[T * B, ...]``) or outside. A value without such an axis belongs to no sample;
    one with two of them mixes samples.

    Args:
        place: place of the sample in the batch.
        count: samples of the batch.
    """

    def parts(alone: Tensor, batch: Tensor) -> list[tuple[Tensor, Tensor]]:
        if alone.dim() != batch.dim():
            return []
        axes = _grown(alone, batch, count)
        if len(axes) != 1:
            return [(alone, batch)] if axes else []
        (axis,) = axes
        size = alone.shape[axis]
        inside = batch.unflatten(axis, (size, count)).select(axis + 1, place)
        return [(alone, inside), (alone, batch.unflatten(axis, (count, size)).select(axis, place))]

    return parts


def _grown(alone: Tensor, batch: Tensor, count: int) -> list[int]:
    """Return the axes that are as many times as long for a batch as for one sample."""
    if alone.dim() != batch.dim():
        return []
    return [n for n in range(alone.dim()) if batch.shape[n] == count * alone.shape[n] > 0]


def _is_sequence(alone: Tensor, batch: Tensor, count: int) -> bool:
    """Whether a value is ``[T, B, ...]`` with several timesteps."""
    return (
        alone.dim() == batch.dim() > 1
        and len(alone) == len(batch) > 1
        and _grown(alone, batch, count)[:1] == [1]
    )


def _is_new(before: Tensor | None, after: Tensor) -> bool:
    return before is None or before.shape != after.shape or not torch.equal(before, after)
