"""ONNX files: export in several styles, and execution."""

from lbq.formats.onnx.export import export_onnx
from lbq.formats.onnx.graph import read_onnx_metadata
from lbq.formats.onnx.run import OnnxRunner, run_onnx

__all__ = ["OnnxRunner", "export_onnx", "read_onnx_metadata", "run_onnx"]
