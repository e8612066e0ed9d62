"""Threads of the command line wait without spinning: a busy neighbour must not stop a training."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "python -m lbq.cli": [sys.executable, "-m", "lbq.cli", "--version"],
    "lbq": [str(Path(sys.executable).parent / "lbq"), "--version"],
}


def spins_of(command, **variables):
    """How often a thread of torch's OpenMP looks before it sleeps, as it says when it is loaded."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    variables["OMP_DISPLAY_ENV"] = "VERBOSE"
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**known, **variables}
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this torch has another OpenMP")
    return int(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[-1])


@pytest.mark.parametrize("name", COMMANDS)
def test_threads_of_a_command_wait_without_spinning(name):
    assert spins_of(COMMANDS[name]) == 0


def test_what_the_user_says_holds():
    command = COMMANDS["python -m lbq.cli"]
    assert spins_of(command, OMP_WAIT_POLICY="active") > 0
    assert spins_of(command, GOMP_SPINCOUNT="5000") == 5000


def test_a_program_that_imports_the_library_keeps_its_own_way():
    assert spins_of([sys.executable, "-c", "import lbq"]) > 0
