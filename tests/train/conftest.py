"""Fixtures of the training tests."""

import subprocess
import sys

import pytest
import torch

from lbq.data import open_data
from lbq.train.build import build_state
from lbq.train.distributed import ProcessGroup

ALONE = ProcessGroup(0, 1, torch.device("cpu"))


@pytest.fixture
def build(tiny, tmp_path):
    """Build the training state of a tiny recipe with changes, on one process."""

    def built(**changes):
        recipe = tiny.tiny_recipe(**changes)
        data = open_data(recipe.data, tmp_path)
        return build_state(recipe.build_model(data.num_classes), recipe, ALONE)

    return built


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
