"""The bytes of a bundle: a 64-byte header with the SHA-256 of the rest, manifest, tensors.

The tensors are a safetensors file, which any safetensors reader can read. It is parsed here because
the safetensors library copies every tensor and raises one error for all faults.
"""

import hashlib
import math
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from lbq.config_io import parse_json, read_fields, read_value
from lbq.errors import FormatError
from lbq.ranges import Range

MAX_MANIFEST = 2**20
"""Largest size of the manifest, and of the table of tensors, in bytes."""
MAX_NODES = 4096
MAX_TENSORS = 4 * MAX_NODES
MAX_NAME = 256
"""Largest size of a name, in bytes of UTF-8."""
MAX_TIMESTEPS = 4096
MAX_LEVEL = 255
MAX_VALUES = 2**24
"""Largest number of output values of a node for one sample and timestep."""
MAX_PROOF = 2**25
"""Largest number of values that the overflow proof visits: timesteps, thresholds and channels."""

RULES = {
    "file": "it is a regular file",
    "magic": "it begins with the eight bytes of a bundle",
    "version": "its version is one that this library reads",
    "reserved": "the reserved bytes are zero",
    "length": "the lengths in its header add up to its size",
    "digest": "the SHA-256 in the header is that of the other bytes of the file",
    "known-digest": "the SHA-256 of the whole file is the one that the caller passed",
    "manifest-size": "the manifest has at most 1 MiB",
    "table-size": "the table of tensors has at most 1 MiB and fits the payload",
    "json": "manifest and table are JSON in UTF-8, without duplicate keys, NaN or infinity, nested "
    "at most 500 times",
    "keys": "every object has exactly the keys of its kind",
    "value": "every value has its type and lies in its range",
    "count": "there are at most 4,096 nodes and 16,384 tensors",
    "name": "paths are unique, at most 256 bytes of UTF-8, with non-empty parts",
    "kind": "every node is of a known kind, an integer kind in an integer network",
    "order": "every node reads earlier nodes only",
    "unread": "a node reads every node that is not a readout; no node reads a readout; the last "
    "node is a readout",
    "timesteps": "there are 1 to 4,096 timesteps, the same everywhere",
    "max-level": "the largest level of a neuron is 1 to 255, of a signed neuron at most 127; "
    "products of levels fit 32 bits",
    "contiguous": "tensors are aligned, contiguous, and fill the payload",
    "tensors": "every tensor is used exactly once, at the offset given by the manifest",
    "dtype": "tensors have the types of their roles",
    "shape": "shapes are positive and fit what the node reads",
    "size": "no node has more than 2**24 outputs; the bounds of the whole network need at most "
    "2**25 ranges of values",
    "signal": "a node gets levels or currents, with or without time, as its kind requires",
    "max-input": "the largest possible input of a synapse does not exceed its `max_input`",
    "finite": "real numbers are finite",
    "bits": "integer weights lie within their bits",
    "thresholds": "thresholds are positive and increase (integer thresholds may be equal)",
    "decay": "a decay is 0 to 1 in integers, 0 to 2 in real numbers",
    "reset": "the amount a reset subtracts is not negative, and the reset settings are consistent",
}
"""Every rule that :func:`lbq.load_network` checks, by name. A bound that differs from the proven
one raises :class:`lbq.errors.BoundError` instead."""


class BundleError(FormatError):
    """A file breaks a rule of the bundle format.

    Args:
        rule: name of the rule, a key of ``RULES``.
        message: what was found, and where.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{message} (rule {rule!r}: {RULES[rule]})")
        self.rule = rule
        self.message = message


def require(holds: bool, rule: str, message: str) -> None:
    """Raise BundleError unless the condition holds."""
    if not holds:
        raise BundleError(rule, message)


MAGIC = b"\x89LBQ\r\n\x1a\n"
"""First bytes of a bundle; they show whether a transfer as text has damaged the file."""
VERSION = 2
ALIGNMENT = 64
"""Alignment of the payload in bytes; spaces pad the manifest."""

_HEADER = struct.Struct("<8sIIQQ32s")  # magic, version, manifest, payload, reserved, SHA-256
_HASHED = _HEADER.size - hashlib.sha256().digest_size
"""Bytes of the header in front of the digest, which hashes them too."""


class Content(NamedTuple):
    """The two parts of a bundle with a verified digest."""

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


def read_file(path: Path, *, sha256: str | None = None) -> Content:
    """Read a file into memory of the same size; check its digest before parsing.

    Args:
        path: path of the bundle.
        sha256: expected SHA-256 of the whole file, compared before anything else.
    """
    mode = os.stat(path).st_mode
    require(stat.S_ISREG(mode), "file", f"{path} is not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if sha256 is None:
            _check_header(file.read(_HEADER.size), size)  # before memory is allocated
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
        f"the bytes have SHA-256 {found.hexdigest()}, the header says {claimed.hex()}; the file is "
        f"damaged, use another copy",
    )
    middle = _HEADER.size + num_manifest
    return Content(view[_HEADER.size : middle], view[middle:])


def _check_header(header: bytes, size: int) -> tuple[int, bytes]:
    """Check the header except the digest; return the manifest's length and the digest.

    The version is checked before the lengths, because another version may have another header.
    """
    require(header.startswith(MAGIC), "magic", f"the file begins with {header[:8]!r}")
    require(len(header) == _HEADER.size, "length", f"the file has {size:,} bytes, a header 64")
    _, version, num_manifest, num_payload, reserved, digest = _HEADER.unpack(header)
    require(
        version == VERSION,
        "version",
        f"unsupported version {version}; this library reads version {VERSION}, use the one that "
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
        f"the header says {total:,} bytes, the file has {size:,}; it was cut or extended",
    )
    return num_manifest, digest


DTYPES = {
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Types by their names in safetensors."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Dtype = Literal["I8", "I16", "I32", "F32", "F64"]
Shape = Annotated[tuple[Annotated[int, Range(1, 2**40)], ...], Range(1, 4)]
Offset = Annotated[int, Range(0, 2**62)]

_TABLE_ENTRY = {"dtype": Dtype, "shape": Shape, "data_offsets": tuple[Offset, Offset]}
_LENGTH = 8


@dataclass(frozen=True)
class Region:
    """Type, shape and offset of a tensor, from the beginning of the payload."""

    dtype: Dtype
    shape: Shape
    offset: Offset

    @property
    def num_values(self) -> int:
        """Count its values."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Count its bytes."""
        return self.num_values * DTYPES[self.dtype].itemsize


def write_tensors(tensors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, Region]]:
    """Return the tensors as safetensors, and where each of them lies."""
    data = safetensors.torch.save({name: t.cpu().contiguous() for name, t in tensors.items()})
    return data, read_tensor_table(memoryview(data))


def read_tensor_table(payload: memoryview) -> dict[str, Region]:
    """Read the region of every tensor; raise for gaps, overlaps, unaligned or unused bytes."""
    length = int.from_bytes(payload[:_LENGTH], "little")
    require(
        len(payload) >= _LENGTH and length <= min(MAX_MANIFEST, len(payload) - _LENGTH),
        "table-size",
        f"the table of tensors claims {length:,} of the payload's {len(payload):,} bytes",
    )
    table = parse_json(payload[_LENGTH : _LENGTH + length], "the table of tensors")
    table = read_value(dict, table, "the table of tensors")
    require(len(table) <= MAX_TENSORS, "count", f"there are {len(table):,} tensors")
    regions = {name: _region(name, entry, _LENGTH + length) for name, entry in table.items()}
    end = _LENGTH + length
    for name, region in sorted(regions.items(), key=lambda item: item[1].offset):
        require(
            region.offset == end,
            "contiguous",
            f"tensor {name} begins at byte {region.offset:,}, the one before ends at {end:,}",
        )
        require(
            region.offset % DTYPES[region.dtype].itemsize == 0,
            "contiguous",
            f"tensor {name} begins at byte {region.offset:,}, across the words of {region.dtype}",
        )
        end += region.num_bytes
    require(
        end == len(payload),
        "contiguous",
        f"the tensors end at byte {end:,} of a payload of {len(payload):,}",
    )
    return regions


def view_tensor(payload: memoryview, region: Region) -> Tensor:
    """Return a tensor without a copy; it keeps the memory of the file alive."""
    flat = torch.frombuffer(
        payload, dtype=DTYPES[region.dtype], count=region.num_values, offset=region.offset
    )
    return flat.reshape(region.shape)


def _region(name: str, entry: Any, start: int) -> Region:
    require(len(name.encode(errors="replace")) <= MAX_NAME, "name", f"{name[:80]!r} is a long name")
    read = read_fields(_TABLE_ENTRY, entry, f"tensor {name}")
    begin, end = read["data_offsets"]
    region = Region(read["dtype"], read["shape"], start + begin)
    require(
        end - begin == region.num_bytes,
        "contiguous",
        f"tensor {name} has {end - begin:,} bytes for shape {region.shape} of {region.dtype}",
    )
    return region
