"""The instruction sets that this machine can run, best first."""

import os

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
        message = "the native kernels are not built: pip install --no-build-isolation -e ."
        if os.environ.get("LBQ_REQUIRE_NATIVE"):
            pytest.fail(message)
        pytest.skip(message, allow_module_level=True)
