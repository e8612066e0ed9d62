"""The doors out: a lowered network as a file that other engines run."""

from lbq.export.onnx import export_onnx
from lbq.export.onnx_graph import read_onnx_facts
from lbq.export.onnx_run import OnnxRunner, run_onnx

__all__ = ["OnnxRunner", "export_onnx", "read_onnx_facts", "run_onnx"]
