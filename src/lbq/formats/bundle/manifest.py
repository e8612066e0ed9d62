"""The manifest of a bundle: a lowered network without its numbers, as JSON.

This module checks each node separately, by the settings and tensors of its operator.
:mod:`lbq.formats.bundle.validation` checks whether nodes fit together.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from lbq.config_io import Document, check_keys, read_fields, read_value, to_document
from lbq.formats.bundle.container import MAX_NAME, MAX_NODES, MAX_TIMESTEPS, Region, Shape, require
from lbq.graph.graph import LoweredNetwork
from lbq.graph.operators import OPERATORS, Bound, Operator
from lbq.ranges import Range

_REAL = ("F32", "F64")
_Int64 = Annotated[int, Range(-(2**63), 2**63 - 1)]

KINDS: dict[str, type[Operator]] = {operator.op: operator for operator in OPERATORS}
"""Every operator by its name in a bundle."""

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
    def operator(self) -> type[Operator]:
        """Return the class of its operator."""
        return KINDS[self.kind]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A network without its numbers."""

    timesteps: int
    input_shape: tuple[int, ...]
    takes_frames: bool
    logit_scale: float | None
    origin: dict[str, Any]
    nodes: tuple[Entry, ...]

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer network."""
        return self.logit_scale is not None


def write_manifest(
    network: LoweredNetwork, regions: Mapping[str, Region], bounds: Mapping[str, Bound]
) -> bytes:
    """Return the manifest of a network with these bounds, whose tensors lie in these regions."""
    nodes: list[dict[str, Any]] = []
    for path, node, inputs in network.nodes:
        bound = bounds.get(path)
        tensors: dict[str, Any] = {}
        for role in node.tensors():
            region = regions.get(f"{path}.{role}")
            tensors[role] = None if region is None else to_document(region)
        nodes.append(
            {
                "path": path,
                "kind": node.op,
                "inputs": inputs,
                "settings": {name: getattr(node, name) for name in node.settings()},
                "tensors": tensors,
                "bound": bound and {"low": bound.low, "high": bound.high, "bits": bound.bits},
            }
        )
    header = {name: getattr(network, name) for name in _KEYS[:-1]}
    return json.dumps({**header, "nodes": nodes}, allow_nan=False).encode()


def read_manifest(document: Document) -> Manifest:
    """Check keys, types and ranges of a manifest, each node separately."""
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
        settings=read_fields(spec.settings(), node["settings"], f"settings of {path}"),
        tensors=_tensors(node["tensors"], spec, path, is_integer=is_integer),
        bound=_bound(node["bound"], path, is_expected=is_integer and spec.has_bound),
    )


def _tensors(
    document: Document, kind: type[Operator], path: str, *, is_integer: bool
) -> dict[str, Region | None]:
    check_keys(document, kind.tensors(), f"tensors of {path}")
    found: dict[str, Region | None] = {}
    for name, role in kind.tensors().items():
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
