"""The pages about trainers train for real, in one process and in two."""

import os
import subprocess
import sys
from pathlib import Path

import follow
import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
TRAINERS = {  # the package, and the weights that the program leaves behind
    "plain-loop": ("torch", "digits.safetensors"),
    "accelerate": ("accelerate", "digits/model.safetensors"),
    "hugging-face-trainer": ("transformers", "runs/digits/checkpoint-45/model.safetensors"),
    "lightning": ("lightning", "digits.safetensors"),
}


def python_of(page):
    return [b.body for b in follow.blocks(PAGES / f"{page}.md") if b.kind == "python"]


@pytest.mark.multi
@pytest.mark.parametrize("page", TRAINERS)
def test_the_page_trains_and_its_weights_load(page, tmp_path):
    package, weights = TRAINERS[page]
    if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing tool is an error, here a skip
        for needed in (package, "sklearn"):
            pytest.importorskip(needed, reason=f"{needed} is installed by .ci/external")
    (tmp_path / "train.py").write_text("\n".join(python_of(page)))

    # in a process of its own: trainers leave process groups and settings behind
    code = "import pathlib, sys, follow; follow.follow(pathlib.Path(sys.argv[1]))"
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{ROOT / 'src'}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # torchrun
    }
    done = subprocess.run(
        [sys.executable, "-c", code, PAGES / f"{page}.md"],
        check=False,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    names = {}
    exec(python_of("plain-loop")[0], names)  # the data, and the network that all pages train
    network, (x, y) = names["network"].eval(), names["test"][:]
    state = load_file(tmp_path / weights)
    network.load_state_dict({name.removeprefix("network."): w for name, w in state.items()})
    with torch.no_grad():
        assert (network(x).argmax(1) == y).float().mean() > 0.92
