"""The multi-step neuron as one operator with several implementations."""

from lbq.kernels.neuron_spec import NeuronSpec, Plateau, Window
from lbq.kernels.reference_scan import burst_scan_reference
from lbq.kernels.scan import burst_scan, force_implementation, neuron_scan
from lbq.kernels.scan_interface import ScanOptions, ScanOutput

__all__ = [
    "NeuronSpec",
    "Plateau",
    "ScanOptions",
    "ScanOutput",
    "Window",
    "burst_scan",
    "burst_scan_reference",
    "force_implementation",
    "neuron_scan",
]
