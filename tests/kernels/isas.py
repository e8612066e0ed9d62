"""The instruction sets that this machine can run, best first."""

import os
from importlib import util

import pytest
import torch

from lbq.kernels import native_scan

BEST = native_scan.isa()


def _runnable():
    if BEST is None:
        return []
    known = ("avx512bf16", "avx512", "avx2", "neon", "scalar")
    found = [isa for isa in known if torch.ops.lbq.set_isa(isa)]
    torch.ops.lbq.set_isa(BEST)
    return found


ISAS = _runnable()


def require_native():
    """Skip the module that calls this where the kernels are not built; CI may not skip it."""
    if BEST is None:
        _skip("the native kernels are not built: pip install --no-build-isolation -e .", "NATIVE")


def require_triton():
    """Skip the module that calls this where triton is not installed; CI may not skip it."""
    if util.find_spec("triton") is None:
        _skip("triton is not installed: pip install -c constraints.txt --no-deps triton", "TRITON")


def _skip(message, part):
    if os.environ.get(f"LBQ_REQUIRE_{part}"):
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)
