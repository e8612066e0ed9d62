"""The multi-step neuron as one operator; ``reference`` is the truth for every implementation."""

from lbq.kernels.reference import burst_scan_reference
from lbq.kernels.scan import burst_scan, forcing
from lbq.kernels.signature import ScanOptions, ScanOutput

__all__ = ["ScanOptions", "ScanOutput", "burst_scan", "burst_scan_reference", "forcing"]
