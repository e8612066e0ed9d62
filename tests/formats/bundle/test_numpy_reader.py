"""The example that reads bundles needs numpy alone, and computes the same integers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import with_reset
from integer_networks import integer_network, random_bytes
from onnx_networks import RESNETS, lowered_resnet

from lbq.formats import save_network
from lbq.runtime import run_network

READER = Path(__file__).parents[3] / "examples" / "numpy_reader.py"

ALONE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("torch", "lbq", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def answers(network, inputs, folder, *, code=ALONE):
    """Let the reader run a bundle in a process without torch; return class and logits per row."""
    save_network(network, folder / "net.lbq")
    np.save(folder / "images.npy", inputs.numpy())
    command = [sys.executable, "-I", "-c", code, READER, folder / "net.lbq", folder / "images.npy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(
    ("name", "block"), [("resnet20", "sew"), ("resnet18", "basic"), ("resnet19", "basic")]
)
def test_the_reader_agrees_with_torch_bit_for_bit(name, block, bits, tmp_path):
    network, inputs = lowered_resnet(RESNETS[name], timesteps=2, bits=bits, block=block)
    expected = run_network(network, inputs, backend="dense")
    found = torch.tensor(answers(network, inputs, tmp_path))
    assert torch.equal(found[:, 1:], expected.long())
    assert torch.equal(found[:, 0], expected.argmax(1))


@pytest.mark.parametrize("reset", ["event", "level", "none", "zero", "late"])
def test_the_reader_knows_every_reset(reset, tmp_path):
    network = with_reset(reset)
    inputs = torch.randint(0, 256, (8, 2, 5, 5), dtype=torch.uint8)
    found = torch.tensor(answers(network, inputs, tmp_path))
    assert torch.equal(found[:, 1:], run_network(network, inputs, backend="dense").long())


@pytest.mark.parametrize("seed", range(10))
def test_the_reader_knows_every_operator(seed, tmp_path):
    network = integer_network(seed, steps=25)
    inputs = random_bytes(network, seed)
    found = answers(network, inputs, tmp_path)
    over_time = network.operators[network.outputs[-1]].over_time
    leading = 1 if over_time == "sum" else 2
    expected = run_network(network, inputs, backend="dense")
    outputs = expected if isinstance(expected, tuple) else (expected,)
    rows = [row for output in outputs for row in output.flatten(leading).flatten(0, leading - 1)]
    assert [row[1:] for row in found] == [row.tolist() for row in rows]


def test_the_reader_is_short_and_alone():
    assert len(READER.read_text().splitlines()) <= 200
    done = subprocess.run(
        [sys.executable, "-c", ALONE.replace("runpy.run_path", "import torch #")],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0  # the guard does stop such imports
