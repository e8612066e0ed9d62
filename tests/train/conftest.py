"""What the tests of training share."""

import subprocess
import sys

import pytest


@pytest.fixture
def launch():
    """Start a program on two workers through the launcher; whatever is left is killed."""
    started = []

    def start(program, *arguments):
        code = (
            "import sys\nfrom lbq.train.distributed import launch_workers\n"
            "sys.exit(launch_workers(['-c', *sys.argv[1:]], devices=2))"
        )
        command = [sys.executable, "-c", code, program, *arguments]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(40)
