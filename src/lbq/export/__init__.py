"""Writing lowered networks to files: bundles, ONNX, NIR and PyTorch programs."""

from lbq.export.bundle import digest, load, save
from lbq.export.container import RULES, BundleError
from lbq.export.nir import export_nir, import_nir
from lbq.export.onnx import export_onnx
from lbq.export.onnx_graph import read_onnx_metadata
from lbq.export.onnx_run import OnnxRunner, run_onnx
from lbq.export.pt2 import export_pt2, read_pt2, run_pt2

__all__ = [
    "RULES",
    "BundleError",
    "OnnxRunner",
    "digest",
    "export_nir",
    "export_onnx",
    "export_pt2",
    "import_nir",
    "load",
    "read_onnx_metadata",
    "read_pt2",
    "run_onnx",
    "run_pt2",
    "save",
]
