"""How the threads of the program ``lbq`` wait for each other; imported before torch.

At the end of every parallel operation OpenMP's threads wait for the last of them, spinning for
milliseconds unless told otherwise. Where other programs keep the cores busy, the last one is not
running, and the others spin in its place: a training of seconds takes minutes. OpenMP reads the
environment once, when torch is imported. What the user has set stays, and so does the environment
of programs that import lbq: theirs is not ours to change.
"""

import os
import sys
from pathlib import Path

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Any of these says how threads wait."""

_is_command = Path(sys.argv[0]).stem == "lbq" or "lbq.cli" in sys.orig_argv

if _is_command and not any(name in os.environ for name in SETTINGS):
    os.environ["OMP_WAIT_POLICY"] = "passive"
