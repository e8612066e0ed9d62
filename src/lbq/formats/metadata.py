"""The metadata of every exported file: inputs, outputs and origin of the network."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

from lbq.config_io import DocumentError, parse_json, read_fields
from lbq.errors import FormatError
from lbq.formats.bundle.container import MAX_TIMESTEPS, MAX_VALUES
from lbq.graph.graph import GraphBuilder, LoweredNetwork
from lbq.graph.operators.operator_base import MAX_RANK
from lbq.ranges import Range

Metadata = dict[str, Any]
"""Keys as in the JSON: timesteps, input_shape, takes_frames, is_integer, logit_scale, origin, and
outputs, the paths of the readouts in order."""

_TYPES: dict[str, Any] = {
    "timesteps": Annotated[int, Range(1, MAX_TIMESTEPS)],
    "input_shape": tuple[Annotated[int, Range(1, MAX_VALUES)], ...],
    "takes_frames": bool,
    "is_integer": bool,
    "logit_scale": float | None,
    "outputs": tuple[str, ...],
    "origin": dict,
}


def network_metadata(network: LoweredNetwork) -> Metadata:
    """Return the metadata of a network."""
    return {
        "timesteps": network.timesteps,
        "input_shape": list(network.input_shape),
        "takes_frames": network.takes_frames,
        "is_integer": network.is_integer,
        "logit_scale": network.logit_scale,
        "outputs": list(network.outputs),
        "origin": network.origin,
    }


def write_metadata(network: LoweredNetwork) -> str:
    """Return the metadata of a network as JSON."""
    return json.dumps(network_metadata(network), allow_nan=False)


def read_metadata(
    text: str | bytes, *, source: str, more: Mapping[str, Any] | None = None
) -> Metadata:
    """Parse the JSON of :func:`write_metadata`.

    Args:
        text: the JSON.
        source: the file's name, for error messages.
        more: types of the format's additional keys.
    """
    types = {**_TYPES, **(more or {})}
    try:
        read = read_fields(types, parse_json(text, "its metadata"), "metadata", required=[*_TYPES])
    except DocumentError as error:
        raise FormatError(f"{source} has invalid metadata: {error}") from error
    sizes = read["input_shape"]
    if not 1 <= len(sizes) <= MAX_RANK or math.prod(sizes) > MAX_VALUES:
        raise FormatError(
            f"{source} has input_shape={str(sizes)[:80]}; expected 1 to {MAX_RANK} sizes, "
            f"{MAX_VALUES:,} values at most"
        )
    return read | {"input_shape": list(sizes), "outputs": list(read["outputs"])}


def empty_graph(metadata: Metadata) -> GraphBuilder:
    """Return a graph with these metadata and without nodes."""
    return GraphBuilder(
        timesteps=metadata["timesteps"],
        input_shape=tuple(metadata["input_shape"]),
        takes_frames=metadata["takes_frames"],
        logit_scale=metadata["logit_scale"],
        origin=metadata["origin"],
    )
