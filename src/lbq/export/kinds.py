"""The kinds of node that a bundle knows: settings, tensors, and the class that each becomes."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from lbq.deploy.nodes import (
    IntegerNeuron,
    LevelNeuron,
    Merge,
    Pool,
    Readout,
    Repeat,
    Shortcut,
    Synapse,
)
from lbq.export.document import Check, flag, optional, pair, whole, word

_REAL = ("F32", "F64")
_LARGEST = 2**31 - 1
_SIDE = 2**16
"""Largest stride, padding, dilation or window."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """A tensor of a node."""

    integer: tuple[str, ...]
    """Types in an integer network."""
    is_optional: bool = False
    real: tuple[str, ...] = _REAL


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of node; settings and tensors are the arguments of its class."""

    node: type[nn.Module]
    settings: Mapping[str, Check]
    tensors: Mapping[str, Role]
    num_inputs: tuple[int, int] = (1, 1)
    """Fewest and most nodes that it reads."""
    has_bound: bool = True
    """Whether it computes integers that the proof bounds."""
    networks: tuple[bool, ...] = (False, True)
    """Whether it lives in real, in integer networks."""


_RESET = word("event", "level", "none", "zero")
_BIAS = Role(integer=("I32",), is_optional=True)

KINDS: dict[str, Kind] = {
    "synapse": Kind(
        node=Synapse,
        settings={
            "max_input": optional(whole(1, _LARGEST)),
            "has_time": flag,
            "stride": pair(1, _SIDE),
            "padding": pair(0, _SIDE),
            "dilation": pair(1, _SIDE),
            "groups": whole(1, _SIDE),
            "bits": optional(lambda value: type(value) is int and value in (4, 8, 16)),
        },
        tensors={"weight": Role(integer=("I8", "I16")), "bias": _BIAS},
    ),
    "shortcut": Kind(
        node=Shortcut,
        settings={"max_input": optional(whole(1, _LARGEST)), "has_time": flag},
        tensors={"weight": Role(integer=("I16",)), "bias": _BIAS},
    ),
    "merge": Kind(node=Merge, settings={}, tensors={}, num_inputs=(1, 2**16)),
    "pool": Kind(
        node=Pool,
        settings={
            "kind": word("max", "sum"),
            "kernel": pair(1, _SIDE),
            "stride": pair(1, _SIDE),
            "padding": pair(0, _SIDE),
            "has_time": flag,
        },
        tensors={},
        has_bound=False,
    ),
    "repeat": Kind(
        node=Repeat, settings={"timesteps": whole(1, _LARGEST)}, tensors={}, has_bound=False
    ),
    "level_neuron": Kind(
        node=LevelNeuron,
        settings={
            "reset": _RESET,
            "is_signed": flag,
            "resets_after_decay": flag,
            "per_threshold_state": flag,
        },
        tensors={
            "thresholds": Role(integer=()),
            "decay": Role(integer=()),
            "reset_amount": Role(integer=()),
            "mixture": Role(integer=(), is_optional=True),
        },
        networks=(False,),
    ),
    "integer_neuron": Kind(
        node=IntegerNeuron,
        settings={
            "multiplier": whole(0, 2**16),
            "shift": whole(0, 16),
            "reset": _RESET,
            "resets_after_decay": flag,
        },
        tensors={"thresholds": Role(integer=("I32",)), "reset_amount": Role(integer=("I32",))},
        networks=(True,),
    ),
    "readout": Kind(node=Readout, settings={"over_time": word("mean", "sum", "none")}, tensors={}),
}


def kind_of(node: nn.Module) -> str:
    """Return the name of a node's kind; every node has its very own class."""
    return next(name for name, kind in KINDS.items() if kind.node is type(node))
