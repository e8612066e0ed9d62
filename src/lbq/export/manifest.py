"""The manifest: a lowered network without its numbers, as JSON, and the outline of one that came.

What each value means to its neighbours is checked in :mod:`lbq.export.graph`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lbq.deploy.bounds import Bound, prove
from lbq.deploy.lowered_network import LoweredNetwork
from lbq.export.document import (
    check_keys,
    check_value,
    flag,
    listed,
    optional,
    text,
    whole,
    word,
)
from lbq.export.kinds import KINDS, Kind, kind_of
from lbq.export.payload import DTYPES, Region
from lbq.export.rules import MAX_NAME, MAX_NODES, MAX_TIMESTEPS, require

_KEYS = ("timesteps", "input_shape", "takes_frames", "logit_scale", "origin", "nodes")
_NODE_KEYS = ("path", "kind", "inputs", "settings", "tensors", "bound")
_REGION_KEYS = ("dtype", "shape", "offset")
_SHAPE = listed(whole(1, 2**40), low=1, high=4)
_WIDE = whole(-(2**63), 2**63)


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


def write(network: LoweredNetwork, regions: Mapping[str, Region]) -> bytes:
    """Return the manifest of a network whose tensors lie in these regions."""
    bounds = prove(network) if network.is_integer else {}
    nodes: list[dict[str, Any]] = []
    for place, node in network.nodes():
        kind = kind_of(node)
        bound = bounds.get(place.path)
        tensors: dict[str, Any] = {}
        for role in KINDS[kind].tensors:
            region = regions.get(f"{place.path}.{role}")
            tensors[role] = None if region is None else region._asdict()
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
    whole_network = {name: getattr(network, name) for name in _KEYS[:-1]}
    return json.dumps({**whole_network, "nodes": nodes}, allow_nan=False).encode()


def read(document: Any) -> Manifest:
    """Check keys, types and ranges of a manifest, each node for itself."""
    check_keys(document, _KEYS, "the manifest")
    timesteps = check_value(document["timesteps"], whole(-(2**63), 2**63), "timesteps")
    require(1 <= timesteps <= MAX_TIMESTEPS, "timesteps", f"timesteps is {timesteps}")
    nodes = check_value(document["nodes"], lambda value: isinstance(value, list), "nodes")
    require(1 <= len(nodes) <= MAX_NODES, "count", f"there are {len(nodes):,} nodes")
    scale = check_value(document["logit_scale"], optional(_is_scale), "logit_scale")
    return Manifest(
        timesteps=timesteps,
        input_shape=tuple(check_value(document["input_shape"], _SHAPE, "input_shape")),
        takes_frames=check_value(document["takes_frames"], flag, "takes_frames"),
        logit_scale=scale,
        origin=check_value(document["origin"], lambda value: isinstance(value, dict), "origin"),
        nodes=tuple(_entry(node, is_integer=scale is not None) for node in nodes),
    )


def _entry(node: Any, *, is_integer: bool) -> Entry:
    check_keys(node, _NODE_KEYS, "a node")
    path = check_value(node["path"], text, "a path")
    _check_name(path)
    kind = check_value(node["kind"], text, f"the kind of {path}")
    require(kind in KINDS, "kind", f"{path} is a {kind[:80]!r}")
    spec = KINDS[kind]
    world = "an integer" if is_integer else "a real"
    require(is_integer in spec.networks, "kind", f"{path} is a {kind} in {world} network")
    low, high = spec.num_inputs
    inputs = check_value(node["inputs"], listed(text, low=low, high=high), f"inputs of {path}")
    settings = check_keys(node["settings"], spec.settings, f"settings of {path}")
    for name, check in spec.settings.items():
        check_value(settings[name], check, f"{name} of {path}")
    tensors = check_keys(node["tensors"], spec.tensors, f"tensors of {path}")
    return Entry(
        path=path,
        kind=kind,
        inputs=tuple(inputs),
        settings={k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()},
        tensors={
            role: _region(tensors[role], spec, role, path, is_integer=is_integer)
            for role in spec.tensors
        },
        bound=_bound(node["bound"], path, is_expected=is_integer and spec.has_bound),
    )


def _region(value: Any, kind: Kind, role: str, path: str, *, is_integer: bool) -> Region | None:
    where = f"{role} of {path}"
    if value is None:
        require(kind.tensors[role].is_optional, "tensors", f"{where} is missing")
        return None
    check_keys(value, _REGION_KEYS, where)
    dtype = check_value(value["dtype"], word(*DTYPES), f"the dtype of {where}")
    allowed = kind.tensors[role].integer if is_integer else kind.tensors[role].real
    require(dtype in allowed, "dtype", f"{where} is {dtype}, which is none of {allowed}")
    shape = check_value(value["shape"], _SHAPE, f"the shape of {where}")
    offset = check_value(value["offset"], whole(0, 2**62), f"the offset of {where}")
    return Region(dtype, tuple(shape), offset)


def _bound(value: Any, path: str, *, is_expected: bool) -> Bound | None:
    if not is_expected:
        require(value is None, "value", f"{path} has a bound where nothing is proven")
        return None
    check_keys(value, ("low", "high", "bits"), f"the bound of {path}")
    low, high = (check_value(value[key], _WIDE, f"{key} of {path}") for key in ("low", "high"))
    bound = Bound(path=path, low=low, high=high)
    check_value(value["bits"], whole(bound.bits, bound.bits), f"the bits of {path}'s bound")
    return bound


def _check_name(path: str) -> None:
    shown = repr(path[:80])
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        size = 0
    require(1 <= size <= MAX_NAME, "name", f"{shown} has {size} bytes of UTF-8")
    require(all(path.split(".")), "name", f"{shown} has an empty part")


def _is_scale(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0
