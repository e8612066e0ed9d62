"""Compare a lowered network with the trained one, value by value, in float64."""

import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lbq.errors import LoweringError
from lbq.graph.graph import Node
from lbq.graph.operators import LevelNeuron
from lbq.lowering.context import LoweredNeuron
from lbq.lowering.lowering import Lowering
from lbq.neurons.batch_axis import tensors_in
from lbq.neurons.module_state import eval_mode
from lbq.neurons.neuron import Neuron
from lbq.neurons.watch import removing_hooks

_Seen = dict[Neuron, list[tuple[Tensor, Tensor]]]
"""Currents and levels of every call of a trained neuron."""
TOLERANCE = 1e-8
"""Allowed difference, relative to the largest value; float64 rounds at 1e-16."""
_CAUSES = (
    "depends on the size of the batch, on random numbers, or on state from other calls; remove "
    "that dependence"
)


@torch.no_grad()
def check_agreement(
    model: nn.Module,
    example: Tensor,
    lower: Callable[[], Lowering],
    *,
    batch_axis: int,
) -> None:
    """Raise :class:`LoweringError` if the lowered network and the model compute different values.

    Both run in float64 on two samples, the example and a random one. The same noise, as wide as
    a neuron's thresholds, is added to the currents of the neuron in both networks. Because of the
    noise every neuron emits, and no membrane lies exactly at a threshold, where rounding would
    decide. Currents may differ only by rounding. Levels must be equal.

    Args:
        model: the trained network; it is not changed.
        example: one sample.
        lower: lowers the model in float64.
        batch_axis: axis of the samples in the example.
    """
    inputs = _two_samples(example, batch_axis)
    dynamo = sys.modules.get("torch._dynamo")  # not imported: nothing was compiled
    eager = torch.compiler.set_stance("force_eager") if dynamo else nullcontext()
    with eval_mode(model), eager, in_float64(model), _KeepsFloat64():
        try:
            lowering = lower()
            neurons, nodes = lowering.neurons, dict(lowering.network.neurons())
            sizes = {p.trained: _width(nodes[path], p) for path, p in neurons.items()}
            expected, by_model = _run_model(model, inputs.clone(), sizes)
            answers, by_network = _run_lowered(lowering, inputs.clone(), sizes)
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, LoweringError):
                raise
            what = str(error).partition("\n")[0]
            advice = "; create tensors in forward with dtype=x.dtype" if "dtype" in what else ""
            raise LoweringError(
                f"the model could not be compared with the lowered network, because it fails in "
                f"float64 with a batch of two: {what}{advice}"
            ) from error
    try:
        _compare(neurons, by_model, by_network)
        _compare_outputs(neurons, answers, expected)
    except LoweringError:
        _check_finite(model, example)
        raise


class _KeepsFloat64(TorchFunctionMode):
    """Replaces conversions to float32, such as ``x.float()``, by conversions to float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        if func in (Tensor.to, Tensor.type):
            args = tuple(_wide(each) for each in args)
            kwargs = {name: _wide(each) for name, each in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _check_finite(model: nn.Module, example: Tensor) -> None:
    """Raise if the model or the example holds a NaN or an infinity."""
    tensors = {"the example": example, **model.state_dict()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            wrong = int((~tensor.isfinite()).sum())
            raise LoweringError(
                f"{name} holds a NaN or an infinity ({wrong} of {tensor.numel()} values); load a "
                f"checkpoint from before the training diverged, or check the preparation of inputs"
            ) from None


def _compare_outputs(
    neurons: dict[str, LoweredNeuron], answers: list[Tensor], expected: list[Tensor]
) -> None:
    """Raise for the first output that differs."""
    for answer, right in zip(answers, expected, strict=True):
        if answer.shape != right.shape or not _is_close(answer, right):
            last = list(neurons)[-1] if neurons else "its input"
            raise LoweringError(
                f"the output of the lowered network differs ({_difference(answer, right)}): code "
                f"behind {last} {_CAUSES}"
            )


@contextmanager
def in_float64(model: nn.Module) -> Generator[None]:
    """Replace parameters, buffers and tensors of the model by float64 copies inside the block."""
    kept: list[tuple[dict[str, Any], str, Tensor]] = []
    copies: dict[int, Tensor] = {}
    for module in model.modules():
        owners: list[Any] = [module._parameters, module._buffers, vars(module)]  # pyright: ignore[reportPrivateUsage]
        for owned in owners:
            for name, value in list(owned.items()):
                if isinstance(value, Tensor) and value.is_floating_point():
                    kept.append((owned, name, value))
                    owned[name] = copies.setdefault(id(value), value.detach().double())
    try:
        yield
    finally:
        for owned, name, value in kept:
            owned[name] = value


def _two_samples(example: Tensor, batch_axis: int) -> Tensor:
    """Return a batch of the example and a random sample of the same magnitude."""
    given = example.detach().to(torch.float64)
    spread = float(given.std()) if given.numel() > 1 else 0.0
    random = torch.randn(given.shape, generator=torch.Generator().manual_seed(0)).to(given)
    other = random * (1.5 * spread if 0 < spread < torch.inf else 1.0)
    return torch.cat([given, other], dim=batch_axis)


def _width(node: LevelNeuron, place: LoweredNeuron) -> tuple[float, float]:
    """Return the range of the noise for a trained neuron, wide enough for all its levels."""
    top = 1.2 * float((node.thresholds * place.scale).max())
    return (-top, top) if node.is_signed else (-0.2 * top, top)


class _Noise:
    """Adds the same noise to a neuron's currents in both networks; keeps currents and levels.

    Args:
        sizes: range of the noise of each trained neuron.
    """

    def __init__(self, sizes: Mapping[Neuron, tuple[float, float]]) -> None:
        self._sizes = sizes
        self._seeds = {neuron: number for number, neuron in enumerate(sizes)}
        self._currents: dict[Neuron, list[Tensor]] = defaultdict(list)
        self._levels: dict[Neuron, list[Tensor]] = defaultdict(list)

    def add(self, neuron: Neuron, received: Tensor, place: LoweredNeuron | None = None) -> Tensor:
        """Return a trained neuron's currents with noise; with a place, the lowered neuron's."""
        self._currents[neuron].append(received)
        low, high = self._sizes[neuron]
        generator = torch.Generator().manual_seed(self._seeds[neuron])
        shape = received.shape if place is None else (*received.shape[:2], *place.layout.shape[2:])
        noise = torch.rand(shape, generator=generator, dtype=torch.float64).to(received)
        noise = low + (high - low) * noise
        return received + (noise if place is None else place.as_lowered(noise))

    def keep(self, neuron: Neuron, levels: Tensor) -> None:
        """Keep the levels that a neuron emitted."""
        self._levels[neuron].append(levels)

    def seen(self) -> _Seen:
        """Return currents and levels of every neuron."""
        pairs = ((n, zip(self._currents[n], self._levels[n], strict=True)) for n in self._seeds)
        return {neuron: list(pair) for neuron, pair in pairs}


def _run_model(
    model: nn.Module, inputs: Tensor, sizes: Mapping[Neuron, tuple[float, float]]
) -> tuple[list[Tensor], _Seen]:
    noise = _Noise(sizes)

    def receive(neuron: Neuron, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (noise.add(neuron, *args),)

    def emit(neuron: Neuron, module: nn.Module, args: tuple[Tensor]) -> None:
        noise.keep(neuron, *args)

    hooks = [
        hook
        for neuron in sizes
        for hook in (
            neuron.receive.register_forward_pre_hook(partial(receive, neuron)),
            neuron.emit.register_forward_pre_hook(partial(emit, neuron)),
        )
    ]
    with removing_hooks(hooks):
        return list(tensors_in(model(inputs))), noise.seen()


def _run_lowered(
    lowering: Lowering, inputs: Tensor, sizes: Mapping[Neuron, tuple[float, float]]
) -> tuple[list[Tensor], _Seen]:
    noise = _Noise(sizes)

    def compute(node: Node, *values: Tensor) -> Tensor:
        place = lowering.neurons.get(node.path)
        if place is None:
            return node.compute(*values)
        levels = node.compute(noise.add(place.trained, values[0], place))
        noise.keep(place.trained, levels)
        return levels

    return list(tensors_in(lowering.network(inputs, compute))), noise.seen()


def _compare(
    neurons: dict[str, LoweredNeuron],
    by_model: _Seen,
    by_network: _Seen,
) -> None:
    """Raise for the first neuron whose currents or levels differ."""
    calls: dict[Neuron, int] = defaultdict(int)
    for path, place in neurons.items():
        neuron = place.trained
        number = calls[neuron]
        calls[neuron] += 1
        if len(by_model[neuron]) != len(by_network[neuron]):
            continue  # the model discards the result of one call; outputs are compared
        (currents, levels), (mine, my_levels) = by_model[neuron][number], by_network[neuron][number]
        if currents.shape[2:] == place.layout.shape[2:]:
            currents, levels = place.as_lowered(currents), place.layout.to_node(levels)
        if mine.shape != currents.shape or not _is_close(mine, currents):
            raise LoweringError(
                f"the currents that reach {path} differ in the lowered network "
                f"({_difference(mine, currents)}): code before it {_CAUSES}"
            )
        if not torch.equal(my_levels.long(), levels.long()):
            raise LoweringError(
                f"{path} ({type(neuron).__name__}) and its lowered form emit different levels for "
                f"the same currents, because its class was changed; use the library's class"
            )


def _is_close(found: Tensor, expected: Tensor) -> bool:
    finite = expected.nan_to_num(0, 0, 0)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(found, expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True)


def _difference(found: Tensor, expected: Tensor) -> str:
    if found.shape != expected.shape:
        return f"shape {list(found.shape)} instead of {list(expected.shape)}"
    return f"by {float((found - expected).abs().max()):.3g} of {float(expected.abs().max()):.3g}"
