"""Passive OpenMP waiting in the command ``lbq``; imported before torch.

By default OpenMP threads spin for milliseconds at the end of every parallel operation. On busy
cores they take time from the thread that they wait for, and training becomes many times slower.
OpenMP reads the environment when torch is imported, so the variables are set before. Variables that
the user has set are kept. Programs that import lbq are not affected.
"""

import os
import sys
from pathlib import Path

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that set how threads wait."""

_is_command = Path(sys.argv[0]).stem == "lbq" or "lbq.cli" in sys.orig_argv

if _is_command and not any(name in os.environ for name in SETTINGS):
    os.environ["OMP_WAIT_POLICY"] = "passive"
