"""``save`` and ``load``: a lowered network as one file, checked bit by bit and rule by rule.

The format is written down in docs/deploy/bundle-format.md.
"""

import hashlib
from os import PathLike
from pathlib import Path

from lbq.atomic_files import atomic_write
from lbq.deploy.bounds import prove
from lbq.deploy.lowered_network import LoweredNetwork
from lbq.errors import BoundError
from lbq.export import container, manifest, payload
from lbq.export.assemble import assemble
from lbq.export.document import parse
from lbq.export.graph import check_graph
from lbq.export.manifest import Manifest
from lbq.export.numbers import check_values


def save(network: LoweredNetwork, path: str | PathLike[str]) -> str:
    """Write a lowered network as a bundle, durably; return the file's SHA-256.

    The bytes are read back by the rules of :func:`load` before anything touches the disk, so no
    file is written that would be refused later.

    Args:
        network: what :func:`lbq.lower` or :func:`lbq.to_fixed_point` returned.
        path: of the file; by custom it ends in ``.lbq``.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> sha256 = lbq.save(net, "net.lbq")
        >>> len(sha256)
        64
    """
    tensors = payload.write(manifest.named_tensors(network))
    regions = payload.read_table(memoryview(tensors))
    data = container.pack(manifest.write(network, regions), tensors)
    _parse(container.unpack(bytearray(data)))
    atomic_write(Path(path), data)
    return hashlib.sha256(data).hexdigest()


def load(path: str | PathLike[str], *, sha256: str | None = None) -> LoweredNetwork:
    """Read a bundle; whatever is wrong with its bytes is an :class:`lbq.errors.LBQError`.

    Nothing is parsed before the digest was found right, nothing is believed that can be computed
    (the proven bounds are proven again), and no code is named or run.

    Args:
        path: of the file.
        sha256: of the whole file, if it is known from elsewhere; another one is refused unread.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> sha256 = lbq.save(net, "net.lbq")
        >>> again = lbq.load("net.lbq", sha256=sha256)
        >>> again.timesteps
        2
    """
    return _parse(container.read(Path(path), sha256=sha256))


def digest(path: str | PathLike[str]) -> str:
    """Return the SHA-256 of a file, as ``sha256sum`` prints it, for ``load(..., sha256=...)``."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parse(content: container.Content) -> LoweredNetwork:
    read = manifest.read(parse(content.manifest, "manifest"))
    check_graph(read)
    network = assemble(read, content.payload)
    for place, node in network.nodes():
        check_values(place.path, node)
    if network.is_integer:
        _check_bounds(read, network)
    return network


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
