"""The unit of every current: what one integer is worth, per channel.

Currents that are added need one unit, so nodes that feed one sum form a group. Its unit is the
largest weight over the largest integer weight, per output channel; identity shortcuts have wider
weights and follow.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.nodes import LevelNeuron, Merge, Readout, Repeat, Shortcut, Synapse

SHORTCUT_MAX = 2**15 - 1
"""The largest weight of an identity shortcut: it is alone in its channel, so it may be wide."""
_FINE = 2**20
"""Units that a threshold or bias may have at most: beyond, finer steps change nothing."""


@dataclass
class Group:
    """Nodes whose currents are added, and who reads the sum."""

    members: list[str] = field(default_factory=list[str])
    is_answer: bool = False
    unit: Tensor = field(default_factory=lambda: torch.ones(1, dtype=torch.float64))


def group_currents(network: LoweredNetwork) -> dict[str, Group]:
    """Find for every node that gives or reads currents the group it belongs to."""
    found: dict[str, Group] = {}
    for place, node in network.nodes():
        if isinstance(node, Synapse | Shortcut):
            group = Group([place.path])
        elif isinstance(node, Merge | Repeat | Readout | LevelNeuron) or place.inputs[0] in found:
            group = _join([found[name] for name in place.inputs], found)
            group.is_answer |= isinstance(node, Readout)
        else:
            continue
        if isinstance(node, LevelNeuron):
            group.members.append(place.path)  # its levels belong to nobody's sum
            found[f"{place.path}:currents"] = group
            continue
        if place.path not in group.members:
            group.members.append(place.path)
        found[place.path] = group
    return found


def choose_units(
    network: LoweredNetwork, groups: dict[str, Group], best: dict[str, Tensor]
) -> None:
    """Set the unit of every group.

    Args:
        network: the lowered network.
        groups: from :func:`group_currents`.
        best: for every synapse, the unit per output channel that suits its weights.
    """
    for group in {id(g): g for g in groups.values()}.values():
        nodes = [(path, network.get_submodule(path)) for path in group.members]
        units = [best[path] for path, node in nodes if isinstance(node, Synapse)]
        floor = _smallest_unit([node for _, node in nodes])
        unit = floor
        for other in units:
            unit = torch.maximum(unit, other)
        group.unit = unit.max().reshape(1) if group.is_answer else unit


def _smallest_unit(nodes: list[torch.nn.Module]) -> Tensor:
    """Return the finest unit in which shortcuts, biases and thresholds still fit their integers."""
    floor = torch.full((1,), 1e-30, dtype=torch.float64)
    for node in nodes:
        if isinstance(node, Shortcut):
            floor = torch.maximum(floor, node.weight.double().abs() / SHORTCUT_MAX)
        if isinstance(node, Synapse | Shortcut) and node.bias is not None:
            largest = node.bias.double().abs().reshape(len(node.bias), -1).amax(1)
            floor = torch.maximum(floor, largest / _FINE)
        if isinstance(node, LevelNeuron):
            floor = torch.maximum(floor, node.thresholds[0].double() / _FINE)
    return floor


def _join(groups: list[Group], found: dict[str, Group]) -> Group:
    first = groups[0]
    for other in groups[1:]:
        if other is first:
            continue
        first.members += other.members
        first.is_answer |= other.is_answer
        for name, group in found.items():
            if group is other:
                found[name] = first
    return first
