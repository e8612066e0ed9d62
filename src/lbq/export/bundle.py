"""``save`` and ``load``: a lowered network as one file, checked bit by bit and rule by rule.

The format is written down in docs/deploy/bundle-format.md.
"""

import hashlib
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from lbq.deploy.bounds import prove
from lbq.deploy.network import LoweredNetwork
from lbq.durable import write_durably
from lbq.errors import BoundError
from lbq.export import container, manifest, payload
from lbq.export.document import parse
from lbq.export.graph import check_graph
from lbq.export.manifest import Entry, Manifest
from lbq.export.numbers import check_numbers
from lbq.export.payload import Region
from lbq.export.rules import refuse, require


def save(network: LoweredNetwork, path: str | PathLike[str]) -> str:
    """Write a lowered network as a bundle, durably; return the file's SHA-256.

    The bytes are read back by the rules of :func:`load` before anything touches the disk, so no
    file is written that would be refused later.

    Args:
        network: what :func:`lbq.lower` or :func:`lbq.to_fixed_point` returned.
        path: of the file; by custom it ends in ``.lbq``.
    """
    tensors = payload.write(manifest.named_tensors(network))
    regions = payload.read_table(memoryview(tensors))
    data = container.pack(manifest.write(network, regions), tensors)
    _parse(container.unpack(bytearray(data)))
    write_durably(Path(path), data)
    return hashlib.sha256(data).hexdigest()


def load(path: str | PathLike[str], *, sha256: str | None = None) -> LoweredNetwork:
    """Read a bundle; whatever is wrong with it is an :class:`lbq.errors.LBQError`.

    Nothing is parsed before the digest was found right, nothing is believed that can be computed
    (the proven bounds are proven again), and no code is named or run.

    Args:
        path: of the file.
        sha256: of the whole file, if it is known from elsewhere; another one is refused unread.
    """
    return _parse(container.read(Path(path), sha256=sha256))


def digest(path: str | PathLike[str]) -> str:
    """Return the SHA-256 of a file, as ``sha256sum`` prints it, for ``load(..., sha256=...)``."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(content: container.Content) -> LoweredNetwork:
    read = manifest.read(parse(content.manifest, "manifest"))
    check_graph(read)
    _check_places(read, payload.read_table(content.payload))
    network = _build(read, content.payload)
    for place, node in network.nodes():
        check_numbers(place.path, node)
    if network.is_integer:
        _check_bounds(read, network)
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


def _build(read: Manifest, data: memoryview) -> LoweredNetwork:
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


def _check_bounds(read: Manifest, network: LoweredNetwork) -> None:
    """Prove again, and compare."""
    proven = prove(network)
    for entry in read.nodes:
        if entry.bound is not None and entry.bound != proven[entry.path]:
            true = proven[entry.path]
            raise BoundError(
                f"{entry.path} claims {entry.bound.low}..{entry.bound.high}, but its integers lie "
                f"in {true.low}..{true.high}; the file does not tell the truth, do not use it"
            )
