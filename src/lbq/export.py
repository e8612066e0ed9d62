"""``lbq.export``: write a lowered network in the format of the file's suffix."""

from os import PathLike
from pathlib import Path

from lbq.errors import ParameterError
from lbq.formats.bundle import save_network
from lbq.formats.device import export_c, export_verilog
from lbq.formats.nir import export_nir
from lbq.formats.onnx import export_onnx
from lbq.formats.pt2 import export_pt2
from lbq.graph.graph import LoweredNetwork

_WRITERS = {
    ".lbq": save_network,
    ".nir": export_nir,
    ".onnx": export_onnx,
    ".pt2": export_pt2,
    ".c": export_c,
    ".v": export_verilog,
}


def export(network: LoweredNetwork, path: str | PathLike[str]) -> None:
    """Write a lowered network to a file; the suffix names the format.

    ``.onnx`` is for ONNX Runtime and OpenVINO (extra ``[onnx]``), ``.pt2`` for torch without lbq,
    ``.nir`` for neuromorphic tools (extra ``[nir]``; real numbers only), ``.c`` for
    microcontrollers, ``.v`` for FPGAs (both integers only), ``.lbq`` for lbq itself. An integer
    network computes the same integers in every format. For more options see
    :func:`~lbq.formats.onnx.export.export_onnx`, :func:`~lbq.formats.device.c_source.export_c` and
    :func:`~lbq.formats.device.verilog.export_verilog`.

    Args:
        network: the result of :func:`lbq.quantize` or :func:`lbq.lower`.
        path: the file to write; an existing file is replaced.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> lbq.export(net, "net.onnx")
        >>> lbq.export(net, "net.tflite")
        Traceback (most recent call last):
        lbq.errors.ParameterError: ...
    """
    if not isinstance(network, LoweredNetwork):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParameterError(
            f"export takes a lowered network, got a {type(network).__name__}; convert it first "
            f"with lbq.quantize, or with lbq.lower for real numbers"
        )
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise ParameterError(
            f"the suffix names the format of the file, one of {', '.join(_WRITERS)}, got "
            f"{str(path)!r}"
        )
    _WRITERS[path.suffix](network, path)
