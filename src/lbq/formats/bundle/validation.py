"""Check that a bundle's network can run: that its nodes fit together, and its values.

The first check uses only the shapes in the manifest, and reads no tensor.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lbq.errors import ParameterError
from lbq.formats.bundle.container import DTYPES, MAX_PROOF, MAX_VALUES, BundleError, Region, require
from lbq.formats.bundle.manifest import Manifest
from lbq.graph.graph import INPUT, LoweredNetwork, Node
from lbq.graph.operators import (
    GraphError,
    IntegerNeuron,
    LevelNeuron,
    Readout,
    Rearrange,
    Shortcut,
    Synapse,
    Value,
)
from lbq.graph.operators.operator_base import MAX_RANK

_SHORTCUT_BITS = 16
_DECAYS = (0.0, 2.0)
"""Range of a real decay, because some neurons learn a decay above 1."""


def check_graph(manifest: Manifest) -> dict[str, Value]:
    """Check that nodes fit together; return the description of every output."""
    network = build(manifest, _without_numbers)
    rank = len(manifest.input_shape)
    require(rank <= MAX_RANK, "shape", f"input_shape has {rank} axes, at most {MAX_RANK} are read")
    try:
        values = network.infer_values(max_size=MAX_VALUES)
    except GraphError as error:
        raise BundleError(error.rule, str(error)) from error
    read = {name for node in network.nodes for name in node.inputs}
    ends = [node.path for node in network.nodes if isinstance(node.operator, Readout)]
    unread = [node.path for node in network.nodes if (node.path in read) == (node.path in ends)]
    require(not unread, "unread", f"no node reads {', '.join(unread[:5])}")
    last = manifest.nodes[-1]
    require(last.kind == "readout", "unread", f"the last node, {last.path}, is a {last.kind}")
    for path, node, inputs in network.nodes:
        if isinstance(node, Readout):
            words = ("sum" if manifest.is_integer else "mean", "none")
            is_right = node.over_time in words and values[inputs[0]].has_time
            require(is_right, "signal", f"{path} computes the {node.over_time} over time")
            is_alike = not manifest.is_integer or node.over_time == last.settings["over_time"]
            require(is_alike, "signal", f"{path} and {last.path} treat time differently")
    _check_proof(network, values)
    _check_dtypes(manifest)
    return values


def build(manifest: Manifest, tensor_of: Callable[[Region], Tensor]) -> LoweredNetwork:
    """Build the network of a manifest.

    Args:
        manifest: the manifest of the bundle.
        tensor_of: returns the tensor of a region.
    """
    nodes: list[Node] = []
    known = {INPUT}
    for entry in manifest.nodes:
        require(entry.path not in known, "name", f"two nodes are called {entry.path}")
        for name in entry.inputs:
            require(name in known, "order", f"{entry.path} reads {name[:80]!r}, not before it")
        known.add(entry.path)
        tensors: dict[str, Tensor | None] = {
            role: None if region is None else tensor_of(region)
            for role, region in entry.tensors.items()
        }
        try:
            node = entry.operator(**tensors, **entry.settings)
        except ParameterError as error:
            raise BundleError("max-level", f"{entry.path}: {error}") from error
        nodes.append(Node(entry.path, node, entry.inputs))
    return LoweredNetwork(
        nodes=tuple(nodes),
        timesteps=manifest.timesteps,
        input_shape=manifest.input_shape,
        takes_frames=manifest.takes_frames,
        logit_scale=manifest.logit_scale,
        origin=manifest.origin,
    )


def _without_numbers(region: Region) -> Tensor:
    """Return a tensor with a shape and a type but without memory."""
    require(region.num_values < 2**62, "size", f"a tensor of shape {region.shape}")
    return torch.empty(1, dtype=DTYPES[region.dtype], device="meta").expand(region.shape)


def _check_proof(network: LoweredNetwork, values: dict[str, Value]) -> None:
    """Limit the work of the overflow proof, which visits every channel of every node."""
    work = 0
    for path, node, inputs in network.nodes:
        value = values[path]
        if isinstance(node, Rearrange):  # the proof looks up the channel of every value
            work += value.size
        elif isinstance(node, IntegerNeuron):
            work += node.max_level * network.timesteps * value.shape[0]
        else:
            work += len(inputs) * value.shape[0]
    require(work <= MAX_PROOF, "size", f"{work:,} inputs, thresholds and timesteps to prove")


def _check_dtypes(manifest: Manifest) -> None:
    """Check that real numbers have one type, and that the type of weights fits their bits."""
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


def check_values(node: Node) -> None:
    """Check a node's tensors: finite, within their bits, rising thresholds, a decay in range."""
    path, operator, _ = node
    for name in operator.tensors():
        tensor: Tensor | None = getattr(operator, name)
        # the extremes of a tensor with a NaN are NaN, and comparisons with NaN are false
        if tensor is not None and tensor.is_floating_point():
            low, high = (float(value) for value in tensor.aminmax())
            require(
                -float("inf") < low <= high < float("inf"),
                "finite",
                f"{name} of {path} holds a NaN or an infinity",
            )
    if isinstance(operator, Synapse) and operator.is_integer:
        assert operator.bits is not None
        _check_bits(path, operator.weight, operator.bits)
    elif isinstance(operator, Shortcut) and operator.is_integer:
        _check_bits(path, operator.weight, _SHORTCUT_BITS)
    elif isinstance(operator, LevelNeuron):
        _check_neuron(path, operator)


def _check_bits(path: str, weight: Tensor, bits: int) -> None:
    low, high = (int(value) for value in weight.aminmax())
    largest = 2 ** (bits - 1) - 1
    require(
        -largest <= low and high <= largest,
        "bits",
        f"weights of {path} lie in {low}..{high}, but {bits} bits hold {-largest}..{largest}",
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
    decay = node.carry_share
    require(low <= decay <= high, "decay", f"{path} has decay {decay:g}")
