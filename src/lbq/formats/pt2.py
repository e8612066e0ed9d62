"""Export to ``.pt2``: a torch program that runs where ``lbq`` is not installed.

torch.export writes it and torch reads it. A ``.pt2`` may hold pickles, compiled code, expressions
and names of Python functions, which torch executes when it loads or runs the program. Files written
here hold only tensors and ATen operators. :func:`read_pt2` raises for files with anything else.
"""

import io
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import Dim

from lbq.atomic_files import atomic_write
from lbq.config_io import parse_json
from lbq.errors import FormatError
from lbq.formats.metadata import Metadata, empty_graph, read_metadata, write_metadata
from lbq.graph.graph import LoweredNetwork
from lbq.graph.torch_module import as_module

_METADATA = "lbq.json"
_EXAMPLE = "data/sample_inputs/model.pt"
"""Empty in our programs, because torch would unpickle it."""
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_ENTRIES = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|models/model\.json|byteorder"
    rf"|archive_(format|version)|\.data/(version|serialization_id)|extra/{re.escape(_METADATA)}"
)
"""The entries of our programs besides the example and the two lists of tensors."""
_PROGRAM = "models/model.json"
_TARGET = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
_SIZE = re.compile(
    r"(Symbol\('\w+'(, \w+=(True|False))*\)|Integer\(-?\d{1,20}\)"
    r"|(Add|Mul|FloorDiv|CleanDiv|Mod|PythonMod|Max|Min)\(|[, )])*"
)
"""Expressions for sizes of free batches; sympy would call any other name in them."""
_FOREIGN = {"as_string", "as_strings", "as_graph", "as_operator", "as_custom_obj"}
"""Kinds of arguments that none of our operators has; with the first, ATen can open files."""


@torch.no_grad()
def export_pt2(network: LoweredNetwork, path: Path) -> None:
    """Write a lowered network, of floats or of integers, as a program for any batch size.

    It has the inputs and outputs of the network: ``torch.export.load(path).module()(inputs)``.
    """
    batch_axis = 1 if network.takes_frames else 0
    program = torch.export.export(
        as_module(network),
        (network.example(batch=2),),  # torch would make a batch of one constant
        dynamic_shapes=({batch_axis: Dim("batch", min=1)},),
    )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    program.example_inputs = None  # torch would pickle them
    archive = io.BytesIO()
    torch.export.save(program, archive, extra_files={_METADATA: write_metadata(network)})
    atomic_write(Path(path), archive.getvalue())


def read_pt2(path: Path) -> tuple[nn.Module, Metadata]:
    """Read a file of :func:`export_pt2`; return the program and its metadata."""
    checked = _check_archive(path)
    extra = {_METADATA: ""}
    try:
        program = torch.export.load(checked, extra_files=extra)
        module = program.module()
    except Exception as error:
        raise FormatError(f"torch {torch.__version__} cannot read {path}: {error}") from error
    return module, read_metadata(extra[_METADATA], source=str(path))


@torch.no_grad()
def run_pt2(path: Path, inputs: Tensor) -> Any:
    """Run a program once and return its logits; integers for an integer network.

    A program with several outputs returns a tuple.
    """
    program, metadata = read_pt2(path)
    empty_graph(metadata).finish().check_input(inputs)
    return program(inputs)


def _check_archive(path: Path) -> io.BytesIO:
    """Raise for damaged files and for entries that could run code.

    These are pickles, shared libraries and expressions. Returns a new archive of the checked
    entries, because torch's reader may see other entries in the file than Python's, and the file
    may change meanwhile.
    """
    checked = io.BytesIO()
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inside = {name.partition("/")[2]: name for name in names}
            strange = [
                name
                for name in inside
                if not _ENTRIES.fullmatch(name) and name not in (_EXAMPLE, *_CONFIGS)
            ]
            if strange or len(inside) != len(names):
                raise FormatError(f"{path} holds {', '.join(strange[:3]) or 'a name twice'}")
            _check_sizes(path, archive)
            for config in _CONFIGS:
                listed = parse_json(archive.read(inside[config]), config)["config"]
                if any(entry["use_pickle"] for entry in listed.values()):
                    raise FormatError(f"{path} holds pickled tensors")
            if archive.read(inside[_EXAMPLE]):
                raise FormatError(f"{path} holds a pickled example")
            _check_program(path, parse_json(archive.read(inside[_PROGRAM]), _PROGRAM))
            damaged = archive.testzip()
            if damaged is None:
                with zipfile.ZipFile(checked, "w") as copy:
                    for name in names:
                        copy.writestr(name, archive.read(name))
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}") from error
    except FormatError as error:
        raise FormatError(f"{error}; it was not written by lbq and is not loaded") from None
    except Exception as error:  # zipfile and torch raise many types for damaged files
        raise FormatError(f"{path} is not a complete .pt2 program: {error}") from error
    if damaged is not None:
        raise FormatError(f"{path} is damaged: the checksum of {damaged} does not match")
    checked.seek(0)
    return checked


def _check_program(path: Path, program: Any) -> None:
    """Raise unless a graph holds only ATen operators on tensors, sizes and numbers."""
    if program["guards_code"]:
        raise FormatError(f"{path} holds guards in Python")
    for limits in program["range_constraints"].values():
        if not all(type(limit) in (int, type(None)) for limit in limits.values()):
            raise FormatError(f"{path} holds a range whose limits are not whole numbers")
    waiting = [program]
    while waiting:
        box = waiting.pop()
        if isinstance(box, dict):
            if foreign := _FOREIGN & box.keys():
                raise FormatError(f"{path} holds an argument {foreign.pop()}")
            if "target" in box and not _is_operator(box["target"]):
                raise FormatError(f"{path} calls {str(box['target'])[:80]!r}")
            if "expr_str" in box and not _SIZE.fullmatch(str(box["expr_str"])):
                raise FormatError(f"{path} holds the expression {str(box['expr_str'])[:80]!r}")
        items = box.values() if isinstance(box, dict) else box
        waiting.extend(item for item in items if isinstance(item, dict | list))


def _is_operator(target: Any) -> bool:
    """Return whether this names an ATen operator without side effects."""
    match = _TARGET.fullmatch(str(target))
    if match is None or not hasattr(torch.ops.aten, match[1]):
        return False
    found = getattr(getattr(torch.ops.aten, match[1]), match[2], None)
    return isinstance(found, OpOverload)


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise for entries that unpack to more than the file; torch stores ours uncompressed."""
    entries = archive.infolist()
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise FormatError(f"{path} holds compressed entries ({', '.join(packed[:3])})")
    unpacked, size = sum(entry.file_size for entry in entries), os.path.getsize(path)
    if unpacked > size:
        raise FormatError(f"{path} has {size:,} bytes and claims to hold {unpacked:,}")
