"""The multi-step neuron as one operator with several implementations."""

from lbq.kernels.reference_scan import burst_scan_reference
from lbq.kernels.scan import burst_scan, force_implementation
from lbq.kernels.scan_interface import ScanOptions, ScanOutput

__all__ = [
    "ScanOptions",
    "ScanOutput",
    "burst_scan",
    "burst_scan_reference",
    "force_implementation",
]
