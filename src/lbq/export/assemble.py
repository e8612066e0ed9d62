"""A network from its two halves: the manifest says what, the payload holds the numbers."""

import torch
from torch import Tensor

from lbq.deploy.lowered_network import LoweredNetwork
from lbq.export import payload
from lbq.export.manifest import Entry, Manifest
from lbq.export.payload import Region
from lbq.export.rules import refuse, require


def assemble(read: Manifest, data: memoryview) -> LoweredNetwork:
    """Build the network; its tensors are views of the payload, nothing is copied."""
    _check_places(read, payload.read_table(data))
    network = LoweredNetwork(
        timesteps=read.timesteps,
        input_shape=read.input_shape,
        takes_frames=read.takes_frames,
        logit_scale=read.logit_scale,
        origin=read.origin,
    )
    for entry in read.nodes:
        tensors: dict[str, Tensor | None] = {
            role: None if region is None else payload.view(data, region)
            for role, region in entry.tensors.items()
        }
        _check_free(network, entry)
        network.add(entry.path, entry.spec.node(**tensors, **entry.settings), *entry.inputs)
    return network


def _check_places(read: Manifest, table: dict[str, Region]) -> None:
    """Complain unless manifest and table speak of the same tensors at the same places."""
    used = {
        f"{entry.path}.{role}": region
        for entry in read.nodes
        for role, region in entry.tensors.items()
        if region is not None
    }
    unused = sorted(set(table) - set(used))
    require(not unused, "tensors", f"nobody uses {', '.join(unused[:5])}")
    for name, region in used.items():
        there = table.get(name)
        require(there == region, "tensors", f"{name} is {region} in the manifest, {there} there")


def _check_free(network: LoweredNetwork, entry: Entry) -> None:
    """Complain about a path that torch cannot give to a module, or that is taken."""
    parent: torch.nn.Module = network
    *folders, name = entry.path.split(".")
    for folder in folders:
        child = getattr(parent, folder, None)
        if child is None and not hasattr(parent, folder):
            parent = torch.nn.Module()  # what will be made for it
            continue
        if not isinstance(child, torch.nn.Module):
            refuse("name", f"{folder!r} in {entry.path} is taken")
        parent = child
    require(not hasattr(parent, name), "name", f"{name!r} in {entry.path} is taken")
