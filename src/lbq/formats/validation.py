"""Checks that a bundle's network can run: how its nodes fit together, and the values it holds.

The first uses the shapes of the manifest alone; nothing is computed and no tensor is touched.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lbq.deploy.bounds import PIXEL_MAX
from lbq.deploy.lowered_network import INPUT
from lbq.deploy.nodes import IntegerNeuron, LevelNeuron, Shortcut, Synapse
from lbq.formats.container import MAX_LEVEL, MAX_PROOF, MAX_VALUES, require
from lbq.formats.manifest import Entry, Manifest

_MAX_SIGNED = 127
"""Signed levels are int8."""
_SHORTCUT_BITS = 16
_DECAYS = (0.0, 2.0)
"""What a real decay may be: some neurons learn one above 1."""


@dataclass(frozen=True, kw_only=True)
class ValueInfo:
    """What a node gives: for one sample at one instant, values of this shape."""

    shape: tuple[int, ...]
    has_time: bool
    max_level: int | None
    """Largest size of levels (or sums of them); None for currents."""


def check_graph(manifest: Manifest) -> dict[str, ValueInfo]:
    """Check that nodes fit together; return what each of them gives."""
    values = {
        INPUT: ValueInfo(
            shape=manifest.input_shape,
            has_time=manifest.takes_frames,
            max_level=PIXEL_MAX if manifest.is_integer else None,
        )
    }
    require(len(manifest.input_shape) in (1, 3), "shape", f"input_shape {manifest.input_shape}")
    _check_size(manifest.input_shape, INPUT)
    read: set[str] = {INPUT}
    for entry in manifest.nodes:
        require(entry.path not in values, "name", f"two nodes are called {entry.path}")
        for name in entry.inputs:
            require(name in values, "order", f"{entry.path} reads {name[:80]!r}, not before it")
        read.update(entry.inputs)
        values[entry.path] = _infer(entry, [values[name] for name in entry.inputs], manifest)
        _check_size(values[entry.path].shape, entry.path)
    last = manifest.nodes[-1]
    unread = [e.path for e in manifest.nodes[:-1] if e.path not in read or e.kind == "readout"]
    require(not unread, "unread", f"no node reads {', '.join(unread[:5])}")
    require(last.kind == "readout", "unread", f"the last node, {last.path}, is a {last.kind}")
    _check_proof(manifest, values)
    _check_dtypes(manifest)
    return values


def _infer(entry: Entry, entering: list[ValueInfo], manifest: Manifest) -> ValueInfo:
    first, path, settings = entering[0], entry.path, entry.settings
    if "has_time" in settings:
        matches = settings["has_time"] == first.has_time
        require(matches, "signal", f"has_time of {path} contradicts what it reads")
    if entry.kind in ("synapse", "shortcut"):
        _check_max_input(entry, first)
        shape = _synapse(entry, first) if entry.kind == "synapse" else _shortcut(entry, first)
        return replace(first, shape=shape, max_level=None)
    if entry.kind == "pool":
        return _pool(entry, first)
    for value in entering:
        require(value.max_level is None, "signal", f"{path} takes currents, it reads levels")
        require(
            (value.shape, value.has_time) == (first.shape, first.has_time),
            "shape",
            f"{path} reads shapes {first.shape} and {value.shape}, or some without time",
        )
    if entry.kind == "merge":
        return first
    is_timed = entry.kind != "repeat"
    what = "a sequence" if is_timed else "one instant"
    require(first.has_time == is_timed, "signal", f"{path} takes {what}")
    if entry.kind == "repeat":
        steps = settings["timesteps"]
        require(steps == manifest.timesteps, "timesteps", f"{path} repeats {steps} times")
        return replace(first, has_time=True)
    if entry.kind == "readout":
        over_time, words = settings["over_time"], ("sum" if manifest.is_integer else "mean", "none")
        require(over_time in words, "signal", f"{path} takes the {over_time} over time")
        return first
    return _neuron(entry, first, manifest)


def _check_max_input(entry: Entry, entering: ValueInfo) -> None:
    says, comes = entry.settings["max_input"], entering.max_level
    if entering.max_level is None:
        # the proof knows how large the currents of an integer network get
        require(
            says is None or entry.bound is not None,
            "max-input",
            f"{entry.path} reads real numbers and claims 0..{says}",
        )
        return
    require(
        says is not None and says >= entering.max_level,
        "max-input",
        f"{entry.path} says that levels to {says} enter, but they reach {comes}",
    )


def _synapse(entry: Entry, entering: ValueInfo) -> tuple[int, ...]:
    weight, bias = entry.shape("weight"), entry.shape("bias")
    assert weight is not None
    settings, path = entry.settings, entry.path
    where = f"weight {weight} of {path} reads {entering.shape}"
    if len(weight) == 2:
        require(weight[1] == math.prod(entering.shape), "shape", where)
        plain = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
        require(
            all(settings[name] == value for name, value in plain.items()),
            "shape",
            f"{path} is a linear layer with stride, padding, dilation or groups",
        )
        shape = weight[:1]
    else:
        groups = settings["groups"]
        require(len(weight) == 4 and len(entering.shape) == 3, "shape", where)
        require(weight[1] * groups == entering.shape[0], "shape", f"{where} in {groups} groups")
        require(weight[0] % groups == 0, "shape", f"{path}: {weight[0]} outputs, {groups} groups")
        reach = [d * (k - 1) + 1 for k, d in zip(weight[2:], settings["dilation"], strict=True)]
        shape = (weight[0], *_slide(entry, entering.shape[1:], reach))
    require(
        bias in (None, weight[:1], shape), "shape", f"bias {bias} of {path}, which gives {shape}"
    )
    return shape


def _shortcut(entry: Entry, entering: ValueInfo) -> tuple[int, ...]:
    for role in ("weight", "bias"):
        shape = entry.shape(role)
        fits = shape in (None, (1,), entering.shape[:1])
        require(fits, "shape", f"{role} {shape} of {entry.path} reads {entering.shape}")
    return entering.shape


def _pool(entry: Entry, entering: ValueInfo) -> ValueInfo:
    kernel, padding = entry.settings["kernel"], entry.settings["padding"]
    require(len(entering.shape) == 3, "shape", f"{entry.path} pools {entering.shape}")
    fits = all(2 * p <= k for p, k in zip(padding, kernel, strict=True))
    require(fits, "shape", f"{entry.path} pads {padding} around windows of {kernel}")
    shape = (entering.shape[0], *_slide(entry, entering.shape[1:], kernel))
    largest = entering.max_level
    if largest is not None and entry.settings["kind"] == "sum":
        largest *= math.prod(kernel)
    return replace(entering, shape=shape, max_level=largest)


def _slide(entry: Entry, space: tuple[int, ...], reach: list[int] | tuple[int, ...]) -> list[int]:
    """Return how many positions a window has along each axis."""
    stride, padding = entry.settings["stride"], entry.settings["padding"]
    axes = zip(space, padding, reach, stride, strict=True)
    counts = [(size + 2 * pad - wide) // step + 1 for size, pad, wide, step in axes]
    require(min(counts) >= 1, "shape", f"the window of {entry.path} is wider than {space}")
    return counts


def _neuron(entry: Entry, entering: ValueInfo, manifest: Manifest) -> ValueInfo:
    path, channels, settings = entry.path, entering.shape[:1], entry.settings
    thresholds, reset_amount = entry.shape("thresholds"), entry.shape("reset_amount")
    is_signed = settings.get("is_signed", False)
    require(
        thresholds is not None and len(thresholds) == 2 and thresholds[1:] in ((1,), channels),
        "shape",
        f"thresholds {thresholds} of {path} for {channels} channels",
    )
    assert thresholds is not None
    largest = _MAX_SIGNED if is_signed else MAX_LEVEL
    require(thresholds[0] <= largest, "max-level", f"{path} has {thresholds[0]} levels")
    fits = reset_amount in ((1,), channels)
    require(fits, "shape", f"reset_amount {reset_amount} of {path} for {channels} channels")
    if entry.kind == "level_neuron":
        require(entry.shape("decay") == (1,), "shape", f"decay {entry.shape('decay')} of {path}")
        mixture, square = entry.shape("mixture"), (manifest.timesteps,) * 2
        require(mixture in (None, square), "shape", f"mixture {mixture} of {path}")
    else:
        small = settings["multiplier"] <= 2 ** settings["shift"]
        require(small, "decay", f"{path} multiplies its carry by more than one")
    per_threshold_state = settings.get("per_threshold_state", False)
    per_channel = entry.kind == "level_neuron" and (thresholds[1], reset_amount) != (1, (1,))
    if settings["resets_after_decay"]:
        sound = thresholds[0] == 1 and not (is_signed or per_threshold_state or per_channel)
        sound &= settings["reset"] == "event"
        require(sound, "reset", f"{path} resets after its decay: one threshold, one event, no sign")
    if per_threshold_state:
        sound = settings["reset"] == "zero" and thresholds[1] == 1 and not is_signed
        require(
            sound,
            "reset",
            f"{path} has a state per threshold: it resets to zero, all channels alike",
        )
    return replace(entering, max_level=thresholds[0])


def _check_size(shape: tuple[int, ...], path: str) -> None:
    require(math.prod(shape) <= MAX_VALUES, "size", f"{path} gives values of shape {shape}")


def _check_proof(manifest: Manifest, values: dict[str, ValueInfo]) -> None:
    """Limit the work of the overflow proof, which visits every channel of every node."""
    work = 0
    for entry in manifest.nodes:
        visits = len(entry.inputs)
        if entry.kind == "integer_neuron":
            thresholds = entry.shape("thresholds")
            assert thresholds is not None
            visits = thresholds[0] * manifest.timesteps
        work += visits * values[entry.path].shape[0]
    require(work <= MAX_PROOF, "size", f"{work:,} inputs, thresholds and timesteps to prove")


def _check_dtypes(manifest: Manifest) -> None:
    """Check that real numbers have one type, and that weights have that of their bits."""
    regions = [region for entry in manifest.nodes for region in entry.tensors.values() if region]
    if not manifest.is_integer:
        dtypes = {region.dtype for region in regions}
        require(len(dtypes) <= 1, "dtype", f"real numbers of several types: {sorted(dtypes)}")
    for entry in manifest.nodes:
        if entry.kind == "synapse":
            weight, bits = entry.tensors["weight"], entry.settings["bits"]
            assert weight is not None
            expected = {None: ("F32", "F64"), 4: ("I8",), 8: ("I8",), 16: ("I16",)}[bits]
            fits = weight.dtype in expected
            require(fits, "dtype", f"{entry.path} has weights of {weight.dtype} and bits {bits}")


def check_values(path: str, node: nn.Module) -> None:
    """Check a node's tensors: finite, within their bits, rising thresholds, a decay in range."""
    for name, tensor in node.named_buffers():
        # the extremes of a tensor with a NaN are NaN, for which comparisons are false
        if tensor.is_floating_point():
            low, high = (float(value) for value in tensor.aminmax())
            require(
                -float("inf") < low <= high < float("inf"),
                "finite",
                f"{name} of {path} holds a NaN or an infinity",
            )
    if isinstance(node, Synapse) and node.is_integer:
        assert node.bits is not None
        _check_bits(path, node.weight, node.bits)
    elif isinstance(node, Shortcut) and node.is_integer:
        _check_bits(path, node.weight, _SHORTCUT_BITS)
    elif isinstance(node, LevelNeuron):
        _check_neuron(path, node)


def _check_bits(path: str, weight: Tensor, bits: int) -> None:
    low, high = (int(value) for value in weight.aminmax())
    largest = 2 ** (bits - 1) - 1
    require(
        -largest <= low and high <= largest,
        "bits",
        f"weights of {path} lie in {low}..{high}, {bits} bits hold {-largest}..{largest}",
    )


def _check_neuron(path: str, node: LevelNeuron) -> None:
    thresholds = node.thresholds
    require(
        bool((thresholds[0] > 0).all()), "thresholds", f"{path} has a threshold at or below zero"
    )
    follows = torch.ge if isinstance(node, IntegerNeuron) else torch.gt
    rises = follows(thresholds[1:], thresholds[:-1])
    require(bool(rises.all()), "thresholds", f"the thresholds of {path} do not rise")
    require(bool((node.reset_amount >= 0).all()), "reset", f"{path} has a negative reset amount")
    low, high = _DECAYS
    require(low <= float(node.decay) <= high, "decay", f"{path} has decay {float(node.decay):g}")
