"""The tensors of a bundle: a safetensors payload, its table read by our own stricter rules.

safetensors writes it and anyone's safetensors reads it. We read it ourselves, for the library
copies every tensor and gives one error for all that may be wrong.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from lbq.export.document import check_keys, check_value, listed, parse, whole, word
from lbq.export.rules import MAX_MANIFEST, MAX_NAME, MAX_TENSORS, require

DTYPES = {
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Types by their names in safetensors."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_LENGTH = 8
_SIZE = whole(1, 2**40)


class Region(NamedTuple):
    """What a tensor is and where it lies, from the beginning of the payload."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_values(self) -> int:
        """Count its values."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Count its bytes."""
        return self.num_values * DTYPES[self.dtype].itemsize


def write(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors as safetensors."""
    return safetensors.torch.save({name: t.cpu().contiguous() for name, t in tensors.items()})


def read_table(payload: memoryview) -> dict[str, Region]:
    """Read where every tensor lies; complain about holes, overlaps, split words, lost bytes."""
    length = int.from_bytes(payload[:_LENGTH], "little")
    require(
        len(payload) >= _LENGTH and length <= min(MAX_MANIFEST, len(payload) - _LENGTH),
        "table-size",
        f"the table of tensors claims {length:,} of the payload's {len(payload):,} bytes",
    )
    table = parse(payload[_LENGTH : _LENGTH + length], "table of tensors")
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


def view(payload: memoryview, region: Region) -> Tensor:
    """Return a tensor without a copy: it keeps the memory of the file alive."""
    flat = torch.frombuffer(
        payload, dtype=DTYPES[region.dtype], count=region.num_values, offset=region.offset
    )
    return flat.reshape(region.shape)


def _region(name: str, entry: Any, start: int) -> Region:
    require(len(name.encode(errors="replace")) <= MAX_NAME, "name", f"{name[:80]!r} is a long name")
    where = f"tensor {name}"
    check_keys(entry, ("dtype", "shape", "data_offsets"), where)
    dtype = check_value(entry["dtype"], word(*DTYPES), f"the dtype of {where}")
    shape = check_value(entry["shape"], listed(_SIZE, low=1, high=4), f"the shape of {where}")
    offsets = listed(whole(0, 2**62), low=2, high=2)
    begin, end = check_value(entry["data_offsets"], offsets, f"the offsets of {where}")
    region = Region(dtype, tuple(shape), start + begin)
    require(
        end - begin == region.num_bytes,
        "contiguous",
        f"{where} has {end - begin:,} bytes for shape {shape} of {dtype}",
    )
    return region
