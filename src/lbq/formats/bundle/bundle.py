"""``save_network`` and ``load_network``: bundles (docs/deploy/bundle-format.md)."""

import hashlib
from functools import partial
from os import PathLike
from pathlib import Path

from lbq.atomic_files import atomic_write
from lbq.config_io import DocumentError, parse_json
from lbq.errors import BoundError
from lbq.formats.bundle.container import (
    BundleError,
    Content,
    Region,
    pack,
    read_file,
    read_tensor_table,
    require,
    unpack,
    view_tensor,
    write_tensors,
)
from lbq.formats.bundle.manifest import Manifest, read_manifest, write_manifest
from lbq.formats.bundle.validation import build, check_graph, check_values
from lbq.graph.graph import LoweredNetwork, prove


def save_network(network: LoweredNetwork, path: str | PathLike[str]) -> str:
    """Write a lowered network as a bundle, atomically; return the file's SHA-256.

    The bytes are checked by the rules of :func:`load_network` before they are written, so every
    written file can be loaded.

    Args:
        network: the result of :func:`lbq.lower` or :func:`lbq.to_fixed_point`.
        path: path of the file; it usually ends in ``.lbq``.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> sha256 = lbq.save_network(net, "net.lbq")
        >>> len(sha256)
        64
    """
    bounds = prove(network) if network.is_integer else {}
    tensors, regions = write_tensors(network.tensors)
    data = pack(write_manifest(network, regions, bounds), tensors)
    _parse(unpack(bytearray(data)))
    atomic_write(Path(path), data)
    return hashlib.sha256(data).hexdigest()


def load_network(path: str | PathLike[str], *, sha256: str | None = None) -> LoweredNetwork:
    """Read a bundle; raise an :class:`lbq.errors.LBQError` for any fault in its bytes.

    The digest is checked before anything is parsed. The bounds are proven again. Bundles neither
    contain nor name code.

    Args:
        path: path of the file.
        sha256: expected SHA-256 of the whole file; a different one raises before the file is
            parsed.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> sha256 = lbq.save_network(net, "net.lbq")
        >>> again = lbq.load_network("net.lbq", sha256=sha256)
        >>> again.timesteps
        2
    """
    return _parse(read_file(Path(path), sha256=sha256))


def digest(path: str | PathLike[str]) -> str:
    """Return the SHA-256 of a file, as ``sha256sum`` prints it, for :func:`load_network`."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(content: Content) -> LoweredNetwork:
    try:
        manifest = read_manifest(parse_json(content.manifest, "the manifest"))
        check_graph(manifest)
        check_regions(manifest, read_tensor_table(content.payload))
        network = build(manifest, partial(view_tensor, content.payload))
    except DocumentError as error:
        raise BundleError(error.problem, str(error)) from error
    for node in network.nodes:
        check_values(node)
    if network.is_integer:
        _check_bounds(manifest, network)
    return network


def check_regions(manifest: Manifest, table: dict[str, Region]) -> None:
    """Check that manifest and table list the same tensors at the same offsets."""
    used = {
        f"{entry.path}.{role}": region
        for entry in manifest.nodes
        for role, region in entry.tensors.items()
        if region is not None
    }
    unused = sorted(set(table) - set(used))
    require(not unused, "tensors", f"no node uses {', '.join(unused[:5])}")
    for name, region in used.items():
        there = table.get(name)
        require(there == region, "tensors", f"{name} is {region} in the manifest, else {there}")


def _check_bounds(manifest: Manifest, network: LoweredNetwork) -> None:
    """Prove the bounds again, and compare them with those in the file."""
    proven = prove(network)
    for entry in manifest.nodes:
        if entry.bound is not None and entry.bound != proven[entry.path]:
            true = proven[entry.path]
            raise BoundError(
                f"{entry.path} states the bound {entry.bound.low}..{entry.bound.high}, but its "
                f"integers lie in {true.low}..{true.high}; the file is wrong, do not use it"
            )
