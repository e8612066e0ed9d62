"""Does the answer to a sample depend on anything but this sample?

The network runs in float64, as a copy in eval mode, on samples alone, in pairs and again. The
outputs of all its modules are compared in the order in which they were computed, so the first one
that differs names the module that is responsible. A neuron that emits nothing would hide what it
does, so the currents of such neurons are made positive and larger until it emits; that mixes no
samples and no timesteps.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lbq.auditing.finding import Finding
from lbq.models.time import tensors_in
from lbq.neurons.neuron import Neuron
from lbq.neurons.watch import removing_hooks

_TOLERANCE = 1e-6
"""Largest difference between equal outputs, relative to the largest value."""
_SAMPLES = 8
"""Samples that are compared with each other."""
_GAINS = (1.0, 8.0, 64.0, 512.0)
"""Tried on the currents of silent neurons."""
_SHARE = 1e-3
"""Share of values that may differ in float32, where rounding moves levels at thresholds."""


@dataclass(frozen=True, eq=False)
class Output:
    """What a module returned in one call."""

    path: str
    value: Tensor
    input: Tensor | None = None


@dataclass(frozen=True)
class Difference:
    """The first output that differs between two runs."""

    path: str
    share: float
    """Share of its values that differ."""
    largest: float
    """Largest difference, relative to the largest value."""

    @property
    def place(self) -> str:
        """Return the path for a sentence."""
        return self.path or "the network itself"

    def evidence(self) -> dict[str, Any]:
        """Return the numbers."""
        return {"module": self.path, "values": self.share, "largest": self.largest}


class Behaviour:
    """Runs copies of a network and compares what their modules return.

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
        self._model, self._axis = model, batch_axis
        self.gains: dict[str, float] = {}
        """Factors on the currents of neurons that are silent otherwise."""
        few = samples.narrow(batch_axis, 0, min(_SAMPLES, samples.shape[batch_axis]))
        self.is_float64, self._batch = self._runs_in_float64(few)
        self._alone = self._batch.split(1, batch_axis)
        neurons = {path for path, module in model.named_modules() if is_neuron(path, module)}
        for gain in _GAINS:
            seen = dict.fromkeys(neurons, False)
            for output in record(self.copy(), self._batch):
                if output.path in neurons:
                    seen[output.path] |= bool((output.value != 0).any())
            silent = [path for path in neurons if not seen[path]]
            if not silent:
                break
            self.gains |= dict.fromkeys(silent, gain)

    def _runs_in_float64(self, samples: Tensor) -> tuple[bool, Tensor]:
        if not samples.is_floating_point():
            return True, samples
        try:
            record(deepcopy(self._model).double().eval(), samples.double())
        except RuntimeError:  # code that converts to float32 itself
            return False, samples.float()
        return True, samples.double()

    def copy(self) -> nn.Module:
        """Return the network in eval mode, with the state that it has now; in float64 if it can."""
        model = deepcopy(self._model).eval()
        for path, gain in self.gains.items():
            model.get_submodule(path).register_forward_pre_hook(_drive(gain))
        return model.double() if self.is_float64 else model.float()

    def _compare(self, *runs: Any) -> Difference | None:
        found = first_difference(*runs)
        is_rounding = found is not None and not self.is_float64 and found.share < _SHARE
        return None if is_rounding else found

    def check_determinism(self) -> Finding:
        """Run two copies on the same samples."""
        found = self._compare(*(record(self.copy(), self._batch) for _ in range(2)))
        if found is None:
            return Finding(
                key="determinism", verdict="holds", sentence="The same samples give the same bits."
            )
        return Finding(
            key="determinism",
            verdict="fails",
            sentence=f"Two runs on the same samples differ, first in {found.place}.",
            module=found.path,
            advice="random numbers in eval mode? dropout with training=True, or a random layer",
            evidence=found.evidence(),
        )

    def check_state(self) -> Finding:
        """Run one copy twice: nothing may survive a call."""
        model = self.copy()
        before = _stored(model)
        first = record(model, self._batch)
        changed = [
            name for name, value in _stored(model).items() if _is_new(before.get(name), value)
        ]
        found = self._compare(first, record(model, self._batch))
        if found is None:
            return Finding(
                key="state",
                verdict="holds",
                sentence="A second call gives the same answers: no state survives a call.",
                evidence={"stored": changed},
            )
        return Finding(
            key="state",
            verdict="fails",
            sentence=f"A second call on the same samples differs, first in {found.place}: state "
            f"survives the call.",
            module=found.path,
            advice="reset the neurons before every call (functional.reset_net in SpikingJelly)",
            evidence={**found.evidence(), "stored": changed},
        )

    def check_batch(self) -> Finding:
        """Run samples alone, side by side and in the other order."""
        batch = record(self.copy(), self._batch)
        swapped = record(self.copy(), self._batch.flip(self._axis))
        count = len(self._alone)
        for place, sample in enumerate(self._alone):
            alone = record(self.copy(), sample)
            for run, at in ((batch, place), (swapped, count - 1 - place)):
                found = self._compare(alone, run, part_of_batch(at, count))
                if found is not None:
                    return Finding(
                        key="leak",
                        verdict="fails",
                        sentence=f"The answer to a sample depends on the other samples of its "
                        f"batch, first in {found.place}.",
                        module=found.path,
                        advice="does a neuron take the batch as time, or a norm the statistics of "
                        "the batch? Time and batch must not be merged before a neuron",
                        evidence=found.evidence(),
                    )
        return Finding(
            key="leak",
            verdict="holds",
            sentence="The answer to a sample does not depend on its batch.",
        )

    @torch.no_grad()
    def check_causality(self) -> Finding:
        """Replay every module that reads a sequence with other values at the later timesteps."""
        pairs = zip(*(record(self.copy(), x) for x in (self._alone[0], self._batch)), strict=False)
        model, replayed = self.copy(), 0
        for alone, both in pairs:
            if not _is_sequence(alone, both, len(self._alone)):
                continue
            assert alone.input is not None
            changed, half = alone.input.clone(), len(alone.input) // 2
            changed[half:] = changed[half:].flip(0) * 1.5 + 0.25
            try:
                before, after = (
                    _first(deepcopy(model.get_submodule(alone.path))(x))
                    for x in (alone.input, changed)
                )
            except Exception:  # noqa: S112 -- a module that cannot be called alone
                continue
            replayed += 1
            early = self._compare(
                [Output(alone.path, before[:half])], [Output(alone.path, after[:half])]
            )
            if early is not None:
                return Finding(
                    key="causality",
                    verdict="fails",
                    sentence=f"Later timesteps change earlier outputs of {early.place}.",
                    module=early.path,
                    advice="a norm, mean or mixture over time needs the whole sequence: such a "
                    "network cannot be streamed",
                    evidence=early.evidence(),
                )
        if not replayed:
            return Finding(
                key="causality",
                verdict="unknown",
                sentence="No module reads a sequence, time first, of two or more timesteps.",
            )
        return Finding(
            key="causality",
            verdict="holds",
            sentence="Later timesteps do not change earlier outputs.",
            evidence={"modules": replayed},
        )


def _drive(gain: float) -> Callable[..., Any]:
    def enlarge(module: nn.Module, args: Any) -> Any:
        if not args or not isinstance(args[0], Tensor):
            return None
        return (args[0].abs() * gain, *args[1:])

    return enlarge


@torch.no_grad()
def record(model: nn.Module, inputs: Tensor) -> list[Output]:
    """Run a network; return what every module returned, in the order of the ends of their calls."""
    outputs: list[Output] = []

    def hook(path: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            given = args[0] if args and isinstance(args[0], Tensor) else None
            for value in tensors_in(output):
                if value.is_floating_point():
                    outputs.append(Output(path, value.detach().clone(), given))
                    break

        return keep

    # Of a neuron, the neuron itself is reported, not its output.
    inner = {m.output for m in model.modules() if isinstance(m, Neuron)}
    hooks = [
        m.register_forward_hook(hook(path)) for path, m in model.named_modules() if m not in inner
    ]
    with removing_hooks(hooks):
        model(inputs)
    return outputs


def first_difference(
    expected: list[Output],
    found: list[Output],
    part: Callable[[Tensor, Tensor], list[Tensor]] = lambda mine, theirs: [theirs],
) -> Difference | None:
    """Return the first output that differs; None if all are equal.

    Args:
        expected: outputs of one run.
        found: outputs of another.
        part: which parts of an output of the other run may be compared; one must be equal.
    """
    for mine, theirs in zip(expected, found, strict=False):
        if mine.path != theirs.path:
            return Difference(mine.path, 1.0, float("inf"))
        differences = [_difference(mine, some) for some in part(mine.value, theirs.value)]
        if differences and None not in differences:
            return min((d for d in differences if d is not None), key=lambda d: d.share)
    return None


def part_of_batch(place: int, count: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Return how the output for one sample is taken from that for a batch.

    The axis of the batch is the one that is as many times as long. It may be merged with others,
    samples inside (``[T * B, ...]``) or outside.

    Args:
        place: of the sample in the batch.
        count: samples of the batch.
    """

    def part(alone: Tensor, batch: Tensor) -> list[Tensor]:
        if alone.dim() != batch.dim():
            return []
        axes = [n for n in range(alone.dim()) if batch.shape[n] == count * alone.shape[n]]
        if len(axes) != 1:
            return [batch] if batch.shape == alone.shape else []  # no batch: the same for all
        (axis,) = axes
        size = alone.shape[axis]
        inside = batch.unflatten(axis, (size, count)).select(axis + 1, place)
        return [inside, batch.unflatten(axis, (count, size)).select(axis, place)]

    return part


def _difference(mine: Output, theirs: Tensor) -> Difference | None:
    if mine.value.shape != theirs.shape:
        return Difference(mine.path, 1.0, float("inf"))
    scale = max(1e-30, float(mine.value.abs().max()) if mine.value.numel() else 0.0)
    gap = (mine.value - theirs).abs() / scale
    wrong = ~(gap <= _TOLERANCE) & ~(mine.value.isnan() & theirs.isnan())
    if not bool(wrong.any()):
        return None
    return Difference(mine.path, float(wrong.double().mean()), float(gap.max()))


def _is_sequence(alone: Output, both: Output, count: int) -> bool:
    """Whether a module maps ``[T, B, ...]`` to ``[T, B, ...]``."""
    if alone.input is None or both.input is None or alone.path != both.path or not alone.path:
        return False
    one, two = alone.input, both.input
    is_long = one.dim() > 2 and len(one) > 1 and len(alone.value) == len(one)
    return is_long and len(two) == len(one) and two.shape[1] == count * one.shape[1]


def _stored(model: nn.Module) -> dict[str, Any]:
    """Return tensors that modules hold, buffers and plain attributes."""
    found = dict(model.named_buffers())
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                found[f"{path}.{name}".lstrip(".")] = value
    return {name: value.detach().clone() for name, value in found.items()}


def _is_new(before: Tensor | None, after: Tensor) -> bool:
    return before is None or before.shape != after.shape or not torch.equal(before, after)


def _first(value: Any) -> Tensor:
    return next(iter(tensors_in(value)))
