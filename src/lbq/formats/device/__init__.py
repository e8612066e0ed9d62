"""Programs for devices: C99 for microcontrollers, Verilog for FPGAs."""

from lbq.formats.device.c_source import CSource, export_c
from lbq.formats.device.verilog import export_verilog

__all__ = ["CSource", "export_c", "export_verilog"]
