"""Write lowered networks to files: bundles, ONNX, NIR, PyTorch programs, C and Verilog."""

from lbq.formats.bundle import digest, load_network, save_network
from lbq.formats.bundle.container import RULES, BundleError
from lbq.formats.device import CSource, export_c, export_verilog
from lbq.formats.nir import export_nir, import_nir
from lbq.formats.onnx import OnnxRunner, export_onnx, read_onnx_metadata, run_onnx
from lbq.formats.pt2 import export_pt2, read_pt2, run_pt2

__all__ = [
    "RULES",
    "BundleError",
    "CSource",
    "OnnxRunner",
    "digest",
    "export_c",
    "export_nir",
    "export_onnx",
    "export_pt2",
    "export_verilog",
    "import_nir",
    "load_network",
    "read_onnx_metadata",
    "read_pt2",
    "run_onnx",
    "run_pt2",
    "save_network",
]
