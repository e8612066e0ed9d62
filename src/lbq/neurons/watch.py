"""Watch levels and currents of a network's neurons through hooks."""

import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lbq.errors import NonFiniteError, ParameterError
from lbq.neurons.neuron import Neuron
from lbq.types import Watch

_LIBRARIES = {
    "spikingjelly": "SpikingJelly",
    "snntorch": "snnTorch",
    "norse": "Norse",
    "sinabs": "sinabs",
}


@contextmanager
def watch_levels(model: nn.Module, watch: Watch) -> Generator[None]:
    """Call ``watch(layer, t, level)`` for every neuron and timestep inside the block.

    ``layer`` is the neuron's path in ``model``; ``level`` is ``[B, *n]`` in small integers.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Identity(), lbq.BurstLIF())
        >>> with lbq.watch_levels(model, lambda layer, t, level: print(layer, t, level.tolist())):
        ...     bursts = model(torch.tensor([[[0.5, 1.5]], [[2.5, 9.0]]]))  # [T, B, n]
        1 0 [[0, 1]]
        1 1 [[2, 5]]
    """

    def show(layer: str, emit: nn.Module, args: Any, levels: Tensor) -> None:
        for t, level in enumerate(levels.unbind(0)):
            watch(layer, t, level)

    hooks = [
        neuron.emit.register_forward_hook(partial(show, layer))
        for layer, neuron in named_neurons(model)
    ]
    with removing_hooks(hooks):
        yield


@contextmanager
def record_levels(model: nn.Module) -> Generator[dict[str, list[Tensor]]]:
    """Record the levels of every neuron inside the ``with`` block.

    Yields a dictionary from the path of each neuron to a list with one tensor ``[T, B, *n]`` of
    small integers per call, in the order of the calls: after one call of the model,
    ``levels[path][0]``. Batches may differ in size. All levels stay in memory; for large data use
    :func:`lbq.watch_levels`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Identity(), lbq.BurstLIF())
        >>> with lbq.record_levels(model) as levels:
        ...     bursts = model(torch.tensor([[[0.5, 1.5]], [[2.5, 9.0]]]))  # [T, B, n]
        >>> levels["1"][0].tolist()
        [[[0, 1]], [[2, 5]]]
    """
    recorded: dict[str, list[Tensor]] = {layer: [] for layer, _ in named_neurons(model)}

    def keep(layer: str, emit: nn.Module, args: Any, levels: Tensor) -> None:
        recorded[layer].append(levels.detach())

    hooks = [
        neuron.emit.register_forward_hook(partial(keep, layer))
        for layer, neuron in named_neurons(model)
    ]
    with removing_hooks(hooks):
        yield recorded


@contextmanager
def check_currents_finite(model: nn.Module) -> Generator[None]:
    """Raise :class:`NonFiniteError` with the layer if a NaN or infinity reaches a neuron.

    Without it a NaN is emitted as level 0. It synchronises the device at every layer: use it for
    debugging.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Identity(), lbq.BurstLIF())
        >>> with lbq.check_currents_finite(model):
        ...     model(torch.full((1, 1, 2), torch.nan))
        Traceback (most recent call last):
        lbq.errors.NonFiniteError: ...
    """

    def check(layer: str, neuron: Neuron, receive: nn.Module, args: tuple[Tensor, ...]) -> None:
        currents = args[0]
        bad = int((~torch.isfinite(currents)).sum())
        if bad:
            raise NonFiniteError(
                f"{layer or 'the neuron'} ({type(neuron).__name__}) received {bad} non-finite of "
                f"{currents.numel()} currents; look at the synapse and batch norm before it, the "
                f"learning rate, and the inputs"
            )

    hooks = [
        neuron.receive.register_forward_pre_hook(partial(check, layer, neuron))
        for layer, neuron in named_neurons(model)
    ]
    with removing_hooks(hooks):
        yield


@contextmanager
def removing_hooks(hooks: list[RemovableHandle]) -> Generator[None]:
    """Remove the hooks when the block ends; inside it, compiled models run uncompiled.

    A compiled model ignores hooks that were registered after its compilation.
    """
    with running_uncompiled():
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def running_uncompiled() -> AbstractContextManager[object]:
    """Run compiled models as the modules that they were compiled from, inside the block."""
    dynamo = sys.modules.get("torch._dynamo")  # not imported: nothing was compiled
    return torch.compiler.set_stance("force_eager") if dynamo else nullcontext()


def named_neurons(model: nn.Module) -> Iterator[tuple[str, Neuron]]:
    """Yield every neuron of the model with its path, in the order of definition."""
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParameterError(
            f"a module of torch has neurons to watch, got {type(model).__name__}; the levels of a "
            f"lowered network are seen by lbq.run_network(..., watch=...)"
        )
    for name, module in model.named_modules():
        if isinstance(module, Neuron):
            yield name, module


def neuron_parameters(model: nn.Module) -> list[nn.Parameter]:
    """List the parameters of the neurons themselves: steps, tails, decays, mixtures.

    Give them an optimizer group without weight decay (docs/decisions/0005).
    """
    found = {id(p): p for _, neuron in named_neurons(model) for p in neuron.parameters()}
    return list(found.values())


def foreign_library(module: nn.Module) -> str | None:
    """Return the library that a neuron comes from; None if the module is not a known neuron.

    Classes are recognised by their names, so the libraries need not be installed.
    """
    for kind in type(module).__mro__:
        library, _, rest = kind.__module__.partition(".")
        is_neuron = (
            "neuron" in rest  # SpikingJelly, snnTorch
            or (library == "norse" and kind.__name__.startswith("SNN"))
            or (kind.__name__ == "StatefulLayer" and getattr(module, "spike_fn", None) is not None)
        )
        if library in _LIBRARIES and is_neuron:
            return _LIBRARIES[library]
    return None
