import subprocess
import sys

import torch

import lbq
from lbq.deploy.capture import capture


def test_calls_have_the_paths_and_shapes_of_the_network():
    model = lbq.resnet20(10, width=1 / 16)
    calls = capture(model, torch.zeros(1, 3, 16, 16))
    found = {call.path: call for call in calls if call.kind == "module"}
    assert found["stages.1.0.neuron1"].shape == (2, 1, 16, 8, 8)
    assert found["stem.3"].timesteps == 2
    assert calls[-1].kind == "output"


def test_networks_are_captured_where_jaxtyping_is_not_installed():
    code = """
import sys
sys.modules["jaxtyping"] = None  # as at a user's
import torch, lbq
model = lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1)).eval()
lbq.lower(model, torch.zeros(1, 3, 16, 16))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
