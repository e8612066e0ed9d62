"""The manifest of a bundle: a lowered network without its numbers, as JSON.

Each node is checked by itself here, by the schema of its kind; :mod:`lbq.formats.validation` checks
whether nodes fit together.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from lbq.config_io import Document, check_keys, read_fields, read_value, to_document
from lbq.deploy.bounds import Bound, prove
from lbq.deploy.lowered_network import LoweredNetwork
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
from lbq.formats.container import MAX_NAME, MAX_NODES, MAX_TIMESTEPS, Region, Shape, require
from lbq.ranges import Range

_REAL = ("F32", "F64")
_SIDE = 2**16
"""Largest stride, padding, dilation or window."""
_Int64 = Annotated[int, Range(-(2**63), 2**63 - 1)]
_MaxInput = Annotated[int, Range(1, 2**31 - 1)] | None
_Positive = Annotated[int, Range(1, _SIDE)]
_NotNegative = Annotated[int, Range(0, _SIDE)]
_Reset = Literal["event", "level", "none", "zero"]


@dataclass(frozen=True, kw_only=True)
class Role:
    """A tensor of a node."""

    integer: tuple[str, ...]
    """Types in an integer network."""
    is_optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of node; settings and tensors are the arguments of its class."""

    node: type[nn.Module]
    settings: Mapping[str, Any]
    """Their types."""
    tensors: Mapping[str, Role]
    num_inputs: tuple[int, int] = (1, 1)
    """Fewest and most nodes that it reads."""
    has_bound: bool = True
    """Whether it computes integers that the proof bounds."""
    networks: tuple[bool, ...] = (False, True)
    """In which networks it may be: of real numbers, of integers."""


_BIAS = Role(integer=("I32",), is_optional=True)

KINDS: dict[str, Kind] = {
    "synapse": Kind(
        node=Synapse,
        settings={
            "max_input": _MaxInput,
            "has_time": bool,
            "stride": tuple[_Positive, _Positive],
            "padding": tuple[_NotNegative, _NotNegative],
            "dilation": tuple[_Positive, _Positive],
            "groups": _Positive,
            "bits": Literal[4, 8, 16] | None,
        },
        tensors={"weight": Role(integer=("I8", "I16")), "bias": _BIAS},
    ),
    "shortcut": Kind(
        node=Shortcut,
        settings={"max_input": _MaxInput, "has_time": bool},
        tensors={"weight": Role(integer=("I16",)), "bias": _BIAS},
    ),
    "merge": Kind(node=Merge, settings={}, tensors={}, num_inputs=(1, 2**16)),
    "pool": Kind(
        node=Pool,
        settings={
            "kind": Literal["max", "sum"],
            "kernel": tuple[_Positive, _Positive],
            "stride": tuple[_Positive, _Positive],
            "padding": tuple[_NotNegative, _NotNegative],
            "has_time": bool,
        },
        tensors={},
        has_bound=False,
    ),
    "repeat": Kind(
        node=Repeat, settings={"timesteps": Annotated[int, Range(1)]}, tensors={}, has_bound=False
    ),
    "level_neuron": Kind(
        node=LevelNeuron,
        settings={
            "reset": _Reset,
            "is_signed": bool,
            "resets_after_decay": bool,
            "per_threshold_state": bool,
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
            "multiplier": _NotNegative,
            "shift": Annotated[int, Range(0, 16)],
            "reset": _Reset,
            "resets_after_decay": bool,
        },
        tensors={"thresholds": Role(integer=("I32",)), "reset_amount": Role(integer=("I32",))},
        networks=(True,),
    ),
    "readout": Kind(
        node=Readout, settings={"over_time": Literal["mean", "sum", "none"]}, tensors={}
    ),
}


def kind_of(node: nn.Module) -> str:
    """Return the name of a node's kind; every node has its very own class."""
    return next(name for name, kind in KINDS.items() if kind.node is type(node))


_KEYS = ("timesteps", "input_shape", "takes_frames", "logit_scale", "origin", "nodes")
_NODE_KEYS = ("path", "kind", "inputs", "settings", "tensors", "bound")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One node of the manifest."""

    path: str
    kind: str
    inputs: tuple[str, ...]
    settings: Mapping[str, Any]
    tensors: Mapping[str, Region | None]
    bound: Bound | None

    @property
    def spec(self) -> Kind:
        """Return what is known of its kind."""
        return KINDS[self.kind]

    def shape(self, role: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor, None if the node has none."""
        region = self.tensors[role]
        return None if region is None else region.shape


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a network but its numbers."""

    timesteps: int
    input_shape: tuple[int, ...]
    takes_frames: bool
    logit_scale: float | None
    origin: dict[str, Any]
    nodes: tuple[Entry, ...]

    @property
    def is_integer(self) -> bool:
        """Whether this is a network of integers."""
        return self.logit_scale is not None


def named_tensors(network: LoweredNetwork) -> dict[str, Tensor]:
    """Return every tensor that a bundle stores, as ``path.role``."""
    found: dict[str, Tensor] = {}
    for place, node in network.nodes():
        for role in KINDS[kind_of(node)].tensors:
            tensor: Tensor | None = getattr(node, role)
            if tensor is not None:
                found[f"{place.path}.{role}"] = tensor
    return found


def write_manifest(network: LoweredNetwork, regions: Mapping[str, Region]) -> bytes:
    """Return the manifest of a network whose tensors lie in these regions."""
    bounds = prove(network) if network.is_integer else {}
    nodes: list[dict[str, Any]] = []
    for place, node in network.nodes():
        kind = kind_of(node)
        bound = bounds.get(place.path)
        tensors: dict[str, Any] = {}
        for role in KINDS[kind].tensors:
            region = regions.get(f"{place.path}.{role}")
            tensors[role] = None if region is None else to_document(region)
        nodes.append(
            {
                "path": place.path,
                "kind": kind,
                "inputs": place.inputs,
                "settings": {name: getattr(node, name) for name in KINDS[kind].settings},
                "tensors": tensors,
                "bound": bound and {"low": bound.low, "high": bound.high, "bits": bound.bits},
            }
        )
    header = {name: getattr(network, name) for name in _KEYS[:-1]}
    return json.dumps({**header, "nodes": nodes}, allow_nan=False).encode()


def read_manifest(document: Document) -> Manifest:
    """Check keys, types and ranges of a manifest, each node for itself."""
    check_keys(document, _KEYS, "the manifest")
    timesteps = read_value(_Int64, document["timesteps"], "timesteps")
    require(1 <= timesteps <= MAX_TIMESTEPS, "timesteps", f"timesteps is {timesteps}")
    nodes = read_value(list, document["nodes"], "nodes")
    require(1 <= len(nodes) <= MAX_NODES, "count", f"there are {len(nodes):,} nodes")
    scale = document["logit_scale"]
    is_scale = scale is None or (isinstance(scale, float) and scale > 0)
    require(is_scale, "value", f"logit_scale must be null or positive, got {str(scale)[:80]}")
    return Manifest(
        timesteps=timesteps,
        input_shape=read_value(Shape, document["input_shape"], "input_shape"),
        takes_frames=read_value(bool, document["takes_frames"], "takes_frames"),
        logit_scale=scale,
        origin=read_value(dict, document["origin"], "origin"),
        nodes=tuple(_entry(node, is_integer=scale is not None) for node in nodes),
    )


def _entry(node: Document, *, is_integer: bool) -> Entry:
    check_keys(node, _NODE_KEYS, "a node")
    path = read_value(str, node["path"], "a path")
    _check_name(path)
    kind = read_value(str, node["kind"], f"the kind of {path}")
    require(kind in KINDS, "kind", f"{path} is a {kind[:80]!r}")
    spec = KINDS[kind]
    numbers = "an integer" if is_integer else "a real"
    require(is_integer in spec.networks, "kind", f"{path} is a {kind} in {numbers} network")
    inputs = Annotated[tuple[str, ...], Range(*spec.num_inputs)]
    return Entry(
        path=path,
        kind=kind,
        inputs=read_value(inputs, node["inputs"], f"inputs of {path}"),
        settings=read_fields(spec.settings, node["settings"], f"settings of {path}"),
        tensors=_tensors(node["tensors"], spec, path, is_integer=is_integer),
        bound=_bound(node["bound"], path, is_expected=is_integer and spec.has_bound),
    )


def _tensors(
    document: Document, kind: Kind, path: str, *, is_integer: bool
) -> dict[str, Region | None]:
    check_keys(document, kind.tensors, f"tensors of {path}")
    found: dict[str, Region | None] = {}
    for name, role in kind.tensors.items():
        where = f"{name} of {path}"
        if document[name] is None:
            require(role.is_optional, "tensors", f"{where} is missing")
            found[name] = None
            continue
        region = found[name] = read_value(Region, document[name], where)
        allowed = role.integer if is_integer else _REAL
        require(region.dtype in allowed, "dtype", f"{where} is {region.dtype}, none of {allowed}")
    return found


def _bound(document: Document, path: str, *, is_expected: bool) -> Bound | None:
    if not is_expected:
        require(document is None, "value", f"{path} has a bound where nothing is proven")
        return None
    read = read_fields(
        {"low": _Int64, "high": _Int64, "bits": _Int64}, document, f"bound of {path}"
    )
    bound = Bound(path=path, low=read["low"], high=read["high"])
    require(read["bits"] == bound.bits, "value", f"the bound of {path} has {bound.bits} bits")
    return bound


def _check_name(path: str) -> None:
    shown = repr(path[:80])
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        size = 0
    require(1 <= size <= MAX_NAME, "name", f"{shown} has {size} bytes of UTF-8")
    require(all(path.split(".")), "name", f"{shown} has an empty part")
