"""The bytes of a bundle: a header of 64 bytes with the SHA-256 of all others, manifest, payload."""

import hashlib
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from lbq.export.rules import MAX_MANIFEST, require

MAGIC = b"\x89LBQ\r\n\x1a\n"
"""Not text, and broken by whoever changes line ends."""
VERSION = 2
ALIGNMENT = 64
"""The payload begins at a multiple of it; spaces behind the manifest fill up."""

_HEADER = struct.Struct("<8sIIQQ32s")  # magic, version, manifest, payload, reserved, SHA-256
_HASHED = _HEADER.size - hashlib.sha256().digest_size
"""Bytes of the header in front of the digest: they are hashed too."""


class Content(NamedTuple):
    """The two parts of a bundle whose digest was found right."""

    manifest: memoryview
    payload: memoryview


def pack(manifest: bytes, payload: bytes) -> bytes:
    """Return the bytes of a bundle."""
    manifest += b" " * (-len(manifest) % ALIGNMENT)
    require(
        len(manifest) <= MAX_MANIFEST, "manifest-size", f"the manifest has {len(manifest):,} bytes"
    )
    start = _HEADER.pack(MAGIC, VERSION, len(manifest), len(payload), 0, bytes(32))[:_HASHED]
    sha256 = hashlib.sha256(start)
    sha256.update(manifest)
    sha256.update(payload)
    return b"".join((start, sha256.digest(), manifest, payload))


def read(path: Path, *, sha256: str | None = None) -> Content:
    """Read a file once, into memory of its own size, and check it before anyone parses it.

    Args:
        path: of the bundle.
        sha256: of the whole file, if the caller knows it; compared before all else.
    """
    mode = os.stat(path).st_mode
    require(stat.S_ISREG(mode), "file", f"{path} is no regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if sha256 is None:
            _check_header(file.read(_HEADER.size), size)  # before memory is taken
            file.seek(0)
        data = bytearray(size)
        found = file.readinto(data)
    require(found == size, "length", f"{found:,} of {size:,} bytes could be read")
    if sha256 is not None:
        whole = hashlib.sha256(data).hexdigest()
        require(
            whole == sha256.lower(),
            "known-digest",
            f"the file has SHA-256 {whole}, expected {sha256}",
        )
    return unpack(data)


def unpack(data: bytearray) -> Content:
    """Check the bytes of a bundle and return views of its parts."""
    num_manifest, claimed = _check_header(bytes(data[: _HEADER.size]), len(data))
    view = memoryview(data)
    found = hashlib.sha256(view[:_HASHED])
    found.update(view[_HEADER.size :])
    require(
        found.digest() == claimed,
        "digest",
        f"the bytes have SHA-256 {found.hexdigest()}, the header says {claimed.hex()}: the file is "
        f"damaged, take another copy",
    )
    middle = _HEADER.size + num_manifest
    return Content(view[_HEADER.size : middle], view[middle:])


def _check_header(header: bytes, size: int) -> tuple[int, bytes]:
    """Check everything in the header but the digest; return the manifest's length and the digest.

    The version comes before the lengths: another version may put other things there.
    """
    require(header.startswith(MAGIC), "magic", f"the file begins with {header[:8]!r}")
    require(len(header) == _HEADER.size, "length", f"the file has {size:,} bytes, a header 64")
    _, version, num_manifest, num_payload, reserved, digest = _HEADER.unpack(header)
    require(
        version == VERSION,
        "version",
        f"unsupported version {version}; this library reads version {VERSION}, take the one that "
        f"wrote the file",
    )
    require(reserved == 0, "reserved", f"the reserved bytes hold {reserved}")
    require(
        num_manifest <= MAX_MANIFEST, "manifest-size", f"the manifest has {num_manifest:,} bytes"
    )
    total = _HEADER.size + num_manifest + num_payload
    require(
        total == size and num_manifest % ALIGNMENT == 0,
        "length",
        f"the header speaks of {total:,} bytes, the file has {size:,}: it was cut or extended",
    )
    return num_manifest, digest
