"""Where half a step can go: the bias before a neuron that reaches this neuron and nobody else.

A level counts whole steps (floor); ReLUs are not quantised at all, and other tools round. Half a
step more in the current turns one into the other.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lbq.deploy.capture import Call, capture
from lbq.neurons.neuron import Neuron

_BIASED = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d)
_PASSING = (
    "add", "iadd", "flatten", "unflatten", "Dropout", "Dropout2d", "Identity", "RepeatOverTime",
)  # fmt: skip
"""What a constant passes unchanged on its way to the neuron."""
_ASKING = ("getattr", "size", "dim")
"""What reads a shape and no value."""


def find_biases(network: nn.Module, example: Tensor) -> dict[str, nn.Module | None]:
    """Find for every neuron the synapse or norm whose bias is its own; None where there is none.

    Args:
        network: with neurons, traceable.
        example: an input of it.
    """
    calls = capture(network, example)
    readers: dict[int, int] = {}
    uses: dict[int, int] = {}
    for call in calls:
        uses[id(call.module)] = uses.get(id(call.module), 0) + 1
        for source in _sources([call.args, call.kwargs]) if call.name not in _ASKING else ():
            readers[id(source)] = readers.get(id(source), 0) + 1

    def walk(call: object) -> nn.Module | None:
        if not isinstance(call, Call) or readers[id(call)] != 1:
            return None
        if isinstance(call.module, _BIASED) and uses[id(call.module)] == 1:
            return call.module if getattr(call.module, "affine", True) else None
        if call.name not in _PASSING or call.kwargs.get("alpha", 1) != 1:
            return None
        return next((found for arg in call.args if (found := walk(arg)) is not None), None)

    return {call.path: walk(call.args[0]) for call in calls if isinstance(call.module, Neuron)}


def _sources(values: Any) -> Iterator[Call]:
    """Yield the calls whose results enter, wherever they stand among the arguments."""
    if isinstance(values, Call):
        yield values
    elif isinstance(values, dict):
        yield from _sources(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _sources(value)


@torch.no_grad()
def add_to_bias(module: nn.Module, offset: Tensor) -> None:
    """Add ``[1]`` or ``[C]`` to the bias of a synapse or norm, which gets one if it has none."""
    bias, weight = getattr(module, "bias", None), module.weight
    if bias is None:
        assert isinstance(weight, Tensor)
        bias = nn.Parameter(weight.new_zeros(len(weight)))
        module.bias = bias
    bias.add_(offset)
