"""Seeing what passes through a network's neurons, without storing anything on them."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lbq.errors import NonFiniteError
from lbq.neurons.neuron import Neuron
from lbq.types import Watch


@contextmanager
def watch_levels(model: nn.Module, watch: Watch) -> Generator[None]:
    """Show every level of every neuron to ``watch(layer, t, level)`` inside the ``with`` block.

    ``layer`` is the neuron's path in ``model``; ``level`` is one instant, ``[B, *n]``, in small
    integers.

    Example:
        >>> with lbq.watch_levels(model, lambda layer, t, level: print(layer, t, level.max())):
        ...     model(images)
    """

    def show(layer: str, emit: nn.Module, args: Any, levels: Tensor) -> None:
        for t, level in enumerate(levels.unbind(0)):
            watch(layer, t, level)

    handles = [
        neuron.emit.register_forward_hook(partial(show, layer))
        for layer, neuron in named_neurons(model)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def check_currents_finite(model: nn.Module) -> Generator[None]:
    """Raise :class:`NonFiniteError`, naming the layer, when a NaN or infinity reaches a neuron.

    Without it a NaN becomes level 0 in silence. It waits for the device at every layer, so it is
    for finding a fault, not for every step.
    """

    def check(layer: str, neuron: nn.Module, args: tuple[Tensor, ...]) -> None:
        currents = args[0]
        bad = int((~torch.isfinite(currents)).sum())
        if bad:
            raise NonFiniteError(
                f"{layer or 'the neuron'} ({type(neuron).__name__}) received {bad} non-finite of "
                f"{currents.numel()} currents; look at the synapse and batch norm before it, the "
                f"learning rate, and the inputs"
            )

    handles = [
        neuron.register_forward_pre_hook(partial(check, layer))
        for layer, neuron in named_neurons(model)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def named_neurons(model: nn.Module) -> Iterator[tuple[str, Neuron]]:
    """Yield every neuron of the model with its path, in the order of definition."""
    for name, module in model.named_modules():
        if isinstance(module, Neuron):
            yield name, module
