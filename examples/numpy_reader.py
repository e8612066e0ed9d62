"""Run an integer bundle with numpy alone: a specification of the .lbq format that computes.

    python examples/numpy_reader.py net.lbq images.npy

``images.npy`` holds uint8, ``[B, *input_shape]``, or ``[T, B, *input_shape]`` for a network of
frames. Every number is an exact int64; docs/deploy/bundle-format.md describes the format.
A reader of untrusted files must check more: ``lbq.load_network`` checks every rule.
"""

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

Node = dict[str, Any]
DTYPES = {"I8": "<i1", "I16": "<i2", "I32": "<i4"}


def read_bundle(path: str) -> dict[str, Any]:
    """Return the manifest, with arrays in place of the descriptions of tensors."""
    data = Path(path).read_bytes()
    magic, version, num_manifest, num_payload, _ = struct.unpack_from("<8sIIQQ", data)
    if magic != b"\x89LBQ\r\n\x1a\n" or version != 2:
        raise ValueError(f"not a bundle of version 2: {path}")
    is_whole = len(data) == 64 + num_manifest + num_payload
    if not is_whole or hashlib.sha256(data[:32] + data[64:]).digest() != data[32:64]:
        raise ValueError(f"damaged: {path}")
    manifest = json.loads(data[64 : 64 + num_manifest])
    if manifest["logit_scale"] is None:
        raise ValueError(f"a network of real numbers: {path}")
    for node in manifest["nodes"]:
        for role, tensor in node["tensors"].items():
            if tensor is not None:
                start, count = 64 + num_manifest + tensor["offset"], int(np.prod(tensor["shape"]))
                values = np.frombuffer(data, DTYPES[tensor["dtype"]], count, start)
                node["tensors"][role] = values.reshape(tensor["shape"]).astype(np.int64)
    return manifest


def per_channel(values: Array, instant: Array) -> Array:
    """Shape ``[C]`` or ``[1]`` to broadcast against ``[B, C, ...]``."""
    return values.reshape(-1, *[1] * (instant.ndim - 2))


def check_bound(integers: Array, node: Node) -> None:
    """Raise if the proof in the file does not hold."""
    bound = node["bound"]
    if bound and not (bound["low"] <= integers.min() and integers.max() <= bound["high"]):
        raise ValueError(f"{node['path']} leaves its bound")


def windows(values: Array, kernel: Any, node: Node, fill: int) -> Iterator[Any]:
    """Yield, for every tap of the window, its place and the values under it: ``[n, C, ...]``."""
    settings = node["settings"]
    stride, padding = settings["stride"], settings["padding"]
    dilation = settings.get("dilation", [1] * len(stride))
    sides = [(0, 0), (0, 0), *((p, p) for p in padding)]
    padded = np.pad(values, sides, constant_values=fill)
    axes = list(zip(padded.shape[2:], kernel, stride, dilation, strict=True))
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes]
    for tap in np.ndindex(*kernel):
        places = zip(tap, counts, stride, dilation, strict=True)
        yield (
            tap,
            padded[(..., *(slice(i * d, i * d + (n - 1) * s + 1, s) for i, n, s, d in places))],
        )


def synapse(values: Array, node: Node) -> Array:
    """A convolution or a linear layer of every instant: ``[n, ...]``."""
    weight, bias, settings = node["tensors"]["weight"], node["tensors"]["bias"], node["settings"]
    currents: Any = 0
    if weight.ndim == 2:
        currents = values.reshape(len(values), -1) @ weight.T
    else:
        groups = settings["groups"]
        for tap, seen in windows(values, weight.shape[2:], node, 0):
            taps = np.split(weight[(..., *tap)], groups)
            parts = zip(taps, np.split(seen, groups, 1), strict=True)
            currents += np.concatenate([np.einsum("oc,nc...->no...", w, x) for w, x in parts], 1)
    if bias is None:
        return currents
    return currents + (bias if bias.ndim > 1 else per_channel(bias, currents))


def shortcut(values: Array, node: Node) -> Array:
    """One weight per channel, of every instant."""
    weight, bias = node["tensors"]["weight"], node["tensors"]["bias"]
    currents = values * per_channel(weight, values)
    return currents if bias is None else currents + per_channel(bias, values)


def pool(values: Array, node: Node) -> Array:
    """The largest or the sum of every window, of every instant."""
    is_max = node["settings"]["kind"] == "max"
    fill = np.iinfo(np.int64).min if is_max else 0  # a maximum never sees the border
    seen = np.stack([tap for _, tap in windows(values, node["settings"]["kernel"], node, fill)])
    return seen.max(0) if is_max else seen.sum(0)


def neuron(currents: Array, node: Node) -> Array:
    """Levels of a sequence ``[T, B, ...]``: decay, integrate, count thresholds, reset."""
    settings, tensors = node["settings"], node["tensors"]
    reset_amount = per_channel(tensors["reset_amount"], currents[0])
    rows = [per_channel(row, currents[0]) for row in tensors["thresholds"]]
    thresholds = np.stack(rows)[:, None]  # [N, 1, C, ...]
    carry, level, levels = np.zeros_like(currents[0]), np.zeros_like(currents[0]), []
    for current in currents:
        membrane = ((carry * settings["multiplier"]) >> settings["shift"]) + current
        if settings["resets_after_decay"]:
            membrane = membrane - reset_amount * level
        check_bound(membrane, node)
        level = (membrane >= thresholds).sum(0)
        units = {"event": np.minimum(level, 1), "level": level}.get(settings["reset"], 0)
        carry = membrane if settings["resets_after_decay"] else membrane - reset_amount * units
        if settings["reset"] == "zero":
            carry = np.where(level > 0, 0, membrane)
        levels.append(level)
    return np.stack(levels)


def move(values: Array, node: Node) -> Array:
    """Slice, roll, rearrange, upsample or pad every instant: ``[n, C, ...]``."""
    kind, settings = node["kind"], node["settings"]
    axis = 1 + settings.get("axis", 0)
    if kind == "slice":
        return np.take(values, range(settings["start"], settings["stop"], settings["step"]), axis)
    if kind == "roll":
        around = settings["start"] + settings["step"] * np.arange(values.shape[axis])
        return np.take(values, around, axis, mode="wrap")
    if kind == "rearrange":
        order, shape = (0, *(1 + i for i in settings["order"])), settings["shape"]
        return values.reshape(-1, *settings["sizes"]).transpose(order).reshape(-1, *shape)
    if kind == "zero_pad":
        sides = zip(settings["before"], settings["after"], strict=True)
        return np.pad(values, [(0, 0), (0, 0), *sides])
    for axis, factor in enumerate(settings["factors"], 2):  # upsample
        values = np.repeat(values, factor, axis)
        if settings["fill"] == "zeros":
            length = values.shape[axis]
            keeps = np.arange(length) % factor == 0
            values = values * keeps.reshape(-1, *[1] * (values.ndim - axis - 1))
            values = np.take(values, range(length - factor + 1), axis)
    return values


def join(inputs: list[Array], node: Node) -> Array:
    """Compute a node that takes values with or without time, or several of them."""
    kind, settings, first = node["kind"], node["settings"], inputs[0]
    if kind == "merge":
        return sum(inputs[1:], first)
    if kind == "concat":
        return np.concatenate(inputs, settings["axis"] + (2 if settings["has_time"] else 1))
    if kind == "offset":
        return first + node["tensors"]["bias"]
    if kind in ("multiply", "matmul"):
        return inputs[0] * inputs[1] if kind == "multiply" else inputs[0] @ inputs[1]
    if kind == "repeat":
        return np.repeat(first[None], settings["timesteps"], axis=0)
    if kind == "integer_neuron":
        return neuron(first, node)
    return first.sum(0) if settings["over_time"] == "sum" else first  # readout


def run(manifest: dict[str, Any], inputs: Array) -> list[Array]:
    """Return every output as rows, ``[B, n]`` or ``[T * B, n]``, in units of ``logit_scale``."""
    if inputs.dtype != np.uint8:
        raise ValueError(f"pixels and counts are uint8, not {inputs.dtype}")
    values = {"input": inputs.astype(np.int64)}
    of_instants = {"synapse": synapse, "shortcut": shortcut, "pool": pool}
    of_instants |= dict.fromkeys(("slice", "roll", "rearrange", "upsample", "zero_pad"), move)
    for node in manifest["nodes"]:
        entering = [values[name] for name in node["inputs"]]
        if node["kind"] in of_instants:
            leading = entering[0].shape[: 2 if node["settings"]["has_time"] else 1]
            flat = entering[0].reshape(-1, *entering[0].shape[len(leading) :])
            made = of_instants[node["kind"]](flat, node)
            made = made.reshape(*leading, *made.shape[1:])
        else:
            made = join(entering, node)
        if node["kind"] != "integer_neuron":  # there the bound is of the membranes
            check_bound(made, node)
        values[node["path"]] = made
    batch = inputs.shape[1 if manifest["takes_frames"] else 0]
    ends = [node for node in manifest["nodes"] if node["kind"] == "readout"]
    has_time = ends[-1]["settings"]["over_time"] == "none"
    rows = batch * (manifest["timesteps"] if has_time else 1)
    return [values[node["path"]].reshape(rows, -1) for node in ends]


if __name__ == "__main__":
    for output in run(read_bundle(sys.argv[1]), np.load(sys.argv[2])):
        for row in output:
            print(int(row.argmax()), *row)
