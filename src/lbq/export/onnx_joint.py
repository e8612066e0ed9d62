"""Which nodes become one int8 convolution: a neuron and all that arrives at it.

A neuron that alone reads a convolution takes it with it. Behind a merge it takes both branches: a
1 x 1 projection becomes further inputs of the block's convolution, at the tap in the middle of its
window, so that both sums share one accumulator and no bit is lost. A shortcut is only noted.
"""

from dataclasses import dataclass

import torch

from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.nodes import EXACT_FLOAT32, IntegerNeuron, Merge, Repeat, Shortcut, Synapse

WEIGHT_MAX = 127
_PAIR_MAX = 2**15 - 1
"""Where older processors saturate the sum of two products of a byte and a signed byte."""


@dataclass
class FusionGroup:
    """A neuron and the nodes before it, as one convolution.

    Args:
        neuron: where it ends.
        nodes: paths of the nodes that it stands for, the neuron's excepted.
        synapse: the convolution; it reads all inputs behind each other, as channels.
        reads: paths of its inputs.
        strides: how far apart the positions are that are read of each input.
        shortcut: what is added to its current; None for nothing.
        shortcut_read: path of the shortcut's input.
    """

    neuron: IntegerNeuron
    nodes: tuple[str, ...]
    synapse: Synapse
    reads: tuple[str, ...]
    strides: tuple[tuple[int, ...], ...]
    shortcut: Shortcut | None = None
    shortcut_read: str = ""


def find_joints(network: LoweredNetwork) -> dict[str, FusionGroup]:
    """Return the groups of a network of one timestep by the paths of their neurons."""
    readers: dict[str, int] = {}
    for place in network.plan:
        for name in place.inputs:
            readers[name] = readers.get(name, 0) + 1
    inputs = {place.path: place.inputs for place in network.plan}
    groups: dict[str, FusionGroup] = {}
    for path, neuron in network.neurons():
        assert isinstance(neuron, IntegerNeuron)
        nodes = _before(network, inputs, path)
        if nodes is None or any(readers[node] > 1 for node in nodes):
            continue
        group = _joint(network, inputs, neuron, nodes)
        if group is not None and int(neuron.thresholds.max()) < EXACT_FLOAT32:
            groups[path] = group
    return groups


def _before(
    network: LoweredNetwork, inputs: dict[str, tuple[str, ...]], path: str
) -> tuple[str, ...] | None:
    """Return the nodes between a neuron and levels; None if a current comes from elsewhere."""
    found: list[str] = []
    for source in inputs[path]:
        node = network.get_submodule(source) if source in inputs else None
        if isinstance(node, Synapse | Shortcut):
            found.append(source)
            continue
        before = _before(network, inputs, source) if isinstance(node, Repeat | Merge) else None
        if before is None:
            return None
        found += [source, *before]
    return tuple(found)


def _joint(
    network: LoweredNetwork,
    inputs: dict[str, tuple[str, ...]],
    neuron: IntegerNeuron,
    nodes: tuple[str, ...],
) -> FusionGroup | None:
    found = {path: network.get_submodule(path) for path in nodes}
    synapses = {path: node for path, node in found.items() if isinstance(node, Synapse)}
    shortcuts = {path: node for path, node in found.items() if isinstance(node, Shortcut)}
    if not synapses or not all(fits_int8(node) for node in synapses.values()):
        return None
    # The widest window comes first; the other must fit its middle.
    (first, synapse), *others = sorted(
        synapses.items(), key=lambda item: -item[1].weight[0, 0].numel()
    )
    if len(others) + len(shortcuts) > 1:
        return None
    reads: list[str] = [inputs[first][0]]
    strides: list[tuple[int, ...]] = [(1, 1)]
    for path, other in others:
        if not _is_centred(synapse) or not _is_projection(other):
            return None
        synapse = _joined(synapse, other)
        reads.append(inputs[path][0])
        strides.append(other.stride)
    group = FusionGroup(neuron, nodes, synapse, tuple(reads), tuple(strides))
    for path, shortcut in shortcuts.items():
        group.shortcut, group.shortcut_read = shortcut, inputs[path][0]
    return group


def _joined(synapse: Synapse, projection: Synapse) -> Synapse:
    height, width = synapse.weight.shape[2:]
    shape = (*projection.weight.shape[:2], height, width)
    weight = torch.zeros(shape, dtype=torch.int8)
    weight[:, :, height // 2, width // 2] = projection.weight[:, :, 0, 0]
    biases = [node.bias for node in (synapse, projection) if node.bias is not None]
    assert synapse.max_input is not None
    assert projection.max_input is not None
    return synapse.with_numbers(
        torch.cat([synapse.weight, weight], dim=1),
        torch.stack(biases).sum(0, dtype=torch.int32) if biases else None,
        max_input=max(synapse.max_input, projection.max_input),
        bits=synapse.bits,
    )


def _is_centred(node: Synapse) -> bool:
    """Tell whether the middle of the window reads the position that is written."""
    middles = zip(node.weight.shape[2:], node.padding, node.dilation, strict=True)
    is_same = all(size % 2 and 2 * pad == dilation * (size - 1) for size, pad, dilation in middles)
    return is_same and tuple(node.stride) == (1, 1) and node.groups == 1


def _is_projection(node: Synapse) -> bool:
    return node.weight.shape[2:] == (1, 1) and not any(node.padding) and node.groups == 1


def fits_int8(node: Synapse) -> bool:
    """Tell whether a synapse fits an int8 convolution that saturates nowhere."""
    if node.is_linear or node.weight.dtype != torch.int8 or node.max_input is None:
        return False
    is_map = node.bias is not None and node.bias.dim() != 1
    return not is_map and 2 * node.max_input * WEIGHT_MAX <= _PAIR_MAX
