"""Which HDF5 files are read as NIR: those that hold nothing but numbers and names, of bounded size.

HDF5 follows links into other files, takes numbers from them, loads filters as plugins and unpacks
a few bytes to any size, and nir reads whatever it finds. So a file is walked through first, and
whatever nir does not write is refused before it is read.
"""

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lbq.errors import FormatError

MAX_BYTES = 2**31
"""Bytes that a file may unpack to."""
_MAX_OBJECTS = 2**18
"""Groups and datasets of a file: an exported neuron has a few per threshold."""
_MAX_STRINGS = 2**16
"""Strings of a dataset: the names of an edge's two ends, mostly."""
_FILTERS = (1, 2, 3)
"""Numbers that HDF5 gave to deflate, shuffle and fletcher32."""


def check_file(file: Path | BinaryIO, *, source: str) -> None:
    """Raise ``FormatError`` about ``source`` unless nir can read the whole file safely."""
    import h5py as module  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] -- nir's

    h5py: Any = module  # its annotations lack what is used here
    with h5py.File(file, "r") as root:
        total, seen, waiting = 0, {h5py.h5o.get_info(root.id).addr}, [root]
        while waiting:
            group = waiting.pop()
            for name in group:
                where = f"{source} at {group.name}/{name}"[:240]
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise FormatError(
                        f"{where} holds a link to elsewhere, which nir does not write"
                    )
                found = group[name]
                address = h5py.h5o.get_info(found.id).addr
                if address in seen or len(seen) > _MAX_OBJECTS:
                    raise FormatError(f"{where} holds an object twice, or more than are read")
                seen.add(address)
                if isinstance(found, h5py.Group):
                    waiting.append(found)
                elif isinstance(found, h5py.Dataset):
                    total += _num_bytes(h5py, found, where, left=MAX_BYTES - total)
                if total > MAX_BYTES:
                    raise FormatError(f"{where} unpacks beyond {MAX_BYTES:,} bytes in all")


def _num_bytes(h5py: Any, found: Any, where: str, *, left: int) -> int:
    """Return how much memory reading a dataset takes; more than is left need not be exact."""
    created = found.id.get_create_plist()
    filters = [created.get_filter(k)[0] for k in range(created.get_nfilters())]
    strings = h5py.check_string_dtype(found.dtype)
    why = None
    if found.external or found.is_virtual:
        why = "takes its numbers from another file"
    elif not set(filters) <= set(_FILTERS):
        why = f"is packed by the filters {filters}"
    elif found.dtype.kind not in "iufbS" and strings is None:
        why = f"holds {found.dtype}"
    elif strings is not None and found.size > _MAX_STRINGS:
        why = f"holds {found.size:,} strings"
    if why is not None:
        raise FormatError(f"{where} {why}, which nir does not write")
    chunk = math.prod(found.chunks or (0,)) * found.dtype.itemsize
    num_bytes = max(found.nbytes, chunk)
    if strings is None or strings.length is not None or num_bytes > left:
        return num_bytes
    for index in np.ndindex(found.shape):  # many strings may be one and the same in the file
        num_bytes += len(found[index])
        if num_bytes > left:
            break
    return num_bytes
