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
    """Shape ``[C]`` or ``[1]`` to broadcast against ``[B, C, H, W]`` or ``[B, C]``."""
    return values.reshape(-1, *[1] * (instant.ndim - 2))


def check_bound(integers: Array, node: dict[str, Any]) -> None:
    """Raise if the proof in the file does not hold."""
    bound = node["bound"]
    if bound and not (bound["low"] <= integers.min() and integers.max() <= bound["high"]):
        raise ValueError(f"{node['path']} leaves its bound")


def windows(values: Array, kernel: Any, node: dict[str, Any], fill: int) -> Iterator[Any]:
    """Yield, for every tap of the window, its place and the values under it: ``[n, C, H', W']``."""
    (sh, sw), (ph, pw) = node["settings"]["stride"], node["settings"]["padding"]
    (kh, kw), (dh, dw) = kernel, node["settings"].get("dilation", (1, 1))
    padded = np.pad(values, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=fill)
    height = (padded.shape[2] - dh * (kh - 1) - 1) // sh + 1
    width = (padded.shape[3] - dw * (kw - 1) - 1) // sw + 1
    for i in range(kh):
        for j in range(kw):
            rows = slice(i * dh, i * dh + (height - 1) * sh + 1, sh)
            columns = slice(j * dw, j * dw + (width - 1) * sw + 1, sw)
            yield (i, j), padded[:, :, rows, columns]


def synapse(values: Array, node: dict[str, Any]) -> Array:
    """A convolution or a linear layer of every instant: ``[n, ...]``."""
    weight, bias, settings = node["tensors"]["weight"], node["tensors"]["bias"], node["settings"]
    if weight.ndim == 2:
        currents = values.reshape(len(values), -1) @ weight.T
        return currents if bias is None else currents + bias
    groups, currents = settings["groups"], 0
    for (i, j), seen in windows(values, weight.shape[2:], node, 0):
        parts = zip(np.split(weight[:, :, i, j], groups), np.split(seen, groups, 1), strict=True)
        currents += np.concatenate([np.einsum("oc,nchw->nohw", w, x) for w, x in parts], 1)
    bias = np.zeros(1, int) if bias is None else bias
    return currents + (bias if bias.ndim == 3 else bias[:, None, None])


def shortcut(values: Array, node: dict[str, Any]) -> Array:
    """One weight per channel, of every instant."""
    weight, bias = node["tensors"]["weight"], node["tensors"]["bias"]
    currents = values * per_channel(weight, values)
    return currents if bias is None else currents + per_channel(bias, values)


def pool(values: Array, node: dict[str, Any]) -> Array:
    """The largest or the sum of every window, of every instant."""
    is_max = node["settings"]["kind"] == "max"
    fill = np.iinfo(np.int64).min if is_max else 0  # a maximum never sees the border
    seen = np.stack([tap for _, tap in windows(values, node["settings"]["kernel"], node, fill)])
    return seen.max(0) if is_max else seen.sum(0)


def neuron(currents: Array, node: dict[str, Any]) -> Array:
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


def run(manifest: dict[str, Any], inputs: Array) -> Array:
    """Answer ``[B, classes]`` in units of ``logit_scale``."""
    if inputs.dtype != np.uint8:
        raise ValueError(f"pixels and counts are uint8, not {inputs.dtype}")
    values = {"input": inputs.astype(np.int64)}
    of_instants = {"synapse": synapse, "shortcut": shortcut, "pool": pool}
    for node in manifest["nodes"]:
        first, settings = values[node["inputs"][0]], node["settings"]
        if node["kind"] in of_instants:
            leading = 2 if settings["has_time"] else 1  # [T, B, ...] or [B, ...]
            flat = first.reshape(-1, *first.shape[leading:])
            made = of_instants[node["kind"]](flat, node)
            check_bound(made, node)
            made = made.reshape(*first.shape[:leading], *made.shape[1:])
        elif node["kind"] == "merge":
            made = sum(values[name] for name in node["inputs"])
        elif node["kind"] == "repeat":
            made = np.repeat(first[None], settings["timesteps"], axis=0)
        elif node["kind"] == "integer_neuron":
            made = neuron(first, node)
        else:  # readout
            made = first.sum(0) if settings["over_time"] == "sum" else first
        values[node["path"]] = made
    return values[manifest["nodes"][-1]["path"]]


if __name__ == "__main__":
    logits = run(read_bundle(sys.argv[1]), np.load(sys.argv[2]))
    for row in logits.reshape(-1, logits.shape[-1]):
        print(int(row.argmax()), *row)
