"""Find the batch axis of an input; check that no neuron takes it as time."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from lbq.errors import ShapeError, TimeError
from lbq.neurons.module_state import copy_network
from lbq.neurons.watch import named_neurons, removing_hooks

_TOLERANCE = 1e-6
"""Tolerance for equal float64 outputs, relative to the largest."""


def check_time(model: nn.Module, x: Tensor, *, batch_axis: int | None = None) -> None:
    """Raise :class:`~lbq.errors.TimeError` if the model takes the batch as time.

    A neuron takes ``[T, B, ...]``: without :class:`~lbq.time.RepeatOverTime` a network of
    static images trains with its samples as timesteps. A float64 copy of the model runs in eval
    mode on the batch, on its first sample and on the batch in reverse order: no neuron's first axis
    may grow with the batch, and no output may depend on other samples.

    Args:
        model: any network with one input. It is not changed.
        x: inputs of the model; a batch of one is extended by its mirror image.
        batch_axis: the axis of ``x`` that is the batch. By default the first axis of vectors and
            images (2 or 4 axes), the second of sequences (3 or 5 axes, time first).

    Example:
        >>> images = torch.randn(4, 3, 8, 8)
        >>> lbq.check_time(lbq.resnet20(10, width=1 / 16), images)
        >>> lbq.check_time(torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), lbq.BurstLIF()), images)
        Traceback (most recent call last):
        lbq.errors.TimeError: ...
    """
    axis = find_batch_axis(x, batch_axis, model)
    if x.shape[axis] == 1:
        x = torch.cat([x, x.flip(-1)], axis)
    model = copy_network(model).double().eval()
    x = x.double() if x.is_floating_point() else x
    one, first = _run(model, x.narrow(axis, 0, 1))
    several, answers = _run(model, x)
    _, backward = _run(model, x.flip(axis))
    taken = explain_batch_axis(x, axis)
    for path, shape in several.items():
        if path in one and shape[0] != one[path][0]:
            raise TimeError(
                f"the neuron {path or 'itself'} takes the batch as time: its currents have shape "
                f"{list(shape)}, time first, and the first axis grows with the batch. Add "
                f"RepeatOverTime(T) before the first neuron, or OverTime around the layers before "
                f"this one, so that its currents are [T, B, ...]. {taken}"
            )
    for alone, answer, other in zip(first, answers, backward, strict=True):
        _check_independent(alone, answer, other, taken)


def find_batch_axis(x: Tensor, batch_axis: int | None, model: nn.Module | None = None) -> int:
    """Return the axis of the batch, by default by the number of axes; raise if it is empty.

    Three axes are ``[T, B, features]`` by default, but the caller may mean ``[B, channels,
    length]``. If the model accepts the input only with the batch first, an error asks for
    ``batch_axis``.

    Args:
        x: inputs.
        batch_axis: the axis that the caller named, or None.
        model: the network that takes ``x``; a copy of it runs on inputs of three axes.
    """
    axis = int(x.dim() in (3, 5)) if batch_axis is None else batch_axis
    if x.dim() <= axis or x.shape[axis] == 0:
        raise ShapeError(f"x needs samples along axis {axis}, the batch, got {list(x.shape)}")
    if batch_axis is None and x.dim() == 3 and model is not None:
        fit = _fit(model, x, 1)
        if fit < _FITS and _fit(model, x, 0) > fit:
            raise ShapeError(
                f"the input, of shape {list(x.shape)}, has three axes, which are [T, B, features] "
                f"by default, but this network takes its samples along the first: pass batch_axis=0"
            )
    return axis


def explain_batch_axis(x: Tensor, axis: int) -> str:
    """Explain in an error message which axis was taken for the batch."""
    return (
        f"The batch was assumed to be axis {axis} of the input, whose shape is {list(x.shape)}; "
        f"pass batch_axis for another"
    )


_FITS = 2


def _fit(model: nn.Module, x: Tensor, axis: int) -> int:
    """Return how well an axis fits as the batch.

    0: not at all; 1: only by the outputs; 2: by the outputs and the neurons. Compares the shapes
    for one sample and for two. The batch is one axis of every output, and the second axis of every
    neuron's currents.
    """
    one = x.narrow(axis, 0, 1)
    try:
        with torch.random.fork_rng([]):
            currents, outputs = _run(copy_network(model).eval(), one)
            more, others = _run(copy_network(model).eval(), torch.cat([one, one], axis))
    except Exception:
        return 0
    pairs = list(zip(outputs, others, strict=False))
    if not pairs or not all(len(_grown(a.shape, b.shape)) == 1 for a, b in pairs):
        return 0
    grown = [_grown(shape, more[path]) for path, shape in currents.items() if path in more]
    return _FITS if all(axes == [1] for axes in grown) else 1


def _grown(before: torch.Size, after: torch.Size) -> list[int]:
    """List the axes that differ."""
    return [k for k, (n, m) in enumerate(zip(before, after, strict=False)) if n != m]


@torch.no_grad()
def _run(model: nn.Module, x: Tensor) -> tuple[dict[str, torch.Size], list[Tensor]]:
    """Return the shape of every neuron's currents, and the outputs."""
    shapes: dict[str, torch.Size] = {}

    def look(path: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        shapes[path] = args[0].shape

    hooks = [
        neuron.receive.register_forward_pre_hook(partial(look, path))
        for path, neuron in named_neurons(model)
    ]
    with removing_hooks(hooks):
        answer = model(x)
    return shapes, [*tensors_in(answer)]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an output: of tuples, lists and dictionaries, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        for item in cast(Iterable[Any], items):
            yield from tensors_in(item)


def _check_independent(alone: Tensor, answer: Tensor, backward: Tensor, taken: str) -> None:
    axes = _grown(alone.shape, answer.shape)
    if len(axes) != 1:
        raise TimeError(
            f"the output for a batch has shape {list(answer.shape)} and for one sample "
            f"{list(alone.shape)}, so one axis of it should be the batch. {taken}"
        )
    (axis,) = axes
    scale = float(answer.abs().max()) or 1.0
    for others, found in (
        ("are left out", (answer.narrow(axis, 0, 1) - alone).abs()),
        ("come in reverse order", (answer - backward.flip(axis)).abs()),
    ):
        if not float(found.max()) <= _TOLERANCE * scale:
            raise TimeError(
                f"the output for a sample changes by up to {float(found.max()):.3g} when the other "
                f"samples of the batch {others}, though no neuron's first axis is the batch: look "
                f"for a reshape that mixes time and batch (use OverTime), or for batch norms "
                f"without running statistics. {taken}"
            )
