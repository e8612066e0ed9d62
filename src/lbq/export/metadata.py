"""What every door writes beside a network: what enters it, and where it came from."""

import json
import math
from collections.abc import Mapping
from typing import Any

from lbq.deploy.lowered_network import LoweredNetwork
from lbq.errors import FormatError
from lbq.export.rules import MAX_TIMESTEPS, MAX_VALUES

Metadata = dict[str, Any]
"""timesteps, input_shape, takes_frames, is_integer, logit_scale, origin: as JSON holds them."""

_KINDS: dict[str, Any] = {
    "timesteps": int,
    "input_shape": list,
    "takes_frames": bool,
    "is_integer": bool,
    "logit_scale": float | None,
    "origin": dict,
}


def network_metadata(network: LoweredNetwork) -> Metadata:
    """Collect what a reader of the file has to know."""
    return {
        "timesteps": network.timesteps,
        "input_shape": list(network.input_shape),
        "takes_frames": network.takes_frames,
        "is_integer": network.is_integer,
        "logit_scale": network.logit_scale,
        "origin": network.origin,
    }


def write_metadata(network: LoweredNetwork) -> str:
    """Write the metadata as JSON."""
    return json.dumps(network_metadata(network), allow_nan=False)


def read_metadata(
    text: str | bytes, *, source: str, more: Mapping[str, Any] | None = None
) -> Metadata:
    """Read what :func:`write_metadata` wrote, or complain about ``source``.

    Args:
        text: the JSON.
        source: what to complain about.
        more: names and types of what a format may say besides.
    """
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source} does not say what it takes: {error}") from error
    kinds = {**_KINDS, **(more or {})}
    if not isinstance(metadata, dict) or not set(_KINDS) <= set(metadata) <= set(kinds):
        raise FormatError(f"{source} does not say what it takes; expected {', '.join(_KINDS)}")
    for name, fact in metadata.items():
        if not isinstance(fact, kinds[name]):
            raise FormatError(f"{source} has {name}={fact!r}")
    sizes = metadata["input_shape"]
    are_sizes = all(isinstance(size, int) and size > 0 for size in sizes)
    if not are_sizes or len(sizes) not in (1, 3) or math.prod(sizes) > MAX_VALUES:
        raise FormatError(
            f"{source} has input_shape={str(sizes)[:80]}; expected 1 or 3 sizes, {MAX_VALUES:,} "
            f"values at most"
        )
    if not 1 <= metadata["timesteps"] <= MAX_TIMESTEPS:
        raise FormatError(
            f"{source} has timesteps={metadata['timesteps']}; expected 1..{MAX_TIMESTEPS}"
        )
    return metadata


def empty_network(metadata: Metadata) -> LoweredNetwork:
    """Make a network of these metadata, without nodes."""
    return LoweredNetwork(
        timesteps=metadata["timesteps"],
        input_shape=tuple(metadata["input_shape"]),
        takes_frames=metadata["takes_frames"],
        logit_scale=metadata["logit_scale"],
        origin=metadata["origin"],
    )
