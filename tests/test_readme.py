"""What the README and the pages about training and leaving it show, runs."""

import re
from pathlib import Path

import pytest
import torch

import lbq

pytestmark = pytest.mark.as_shipped  # the annotation checks stop tracers
ROOT = Path(__file__).parent.parent


def run_blocks(path, **names):
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.S)
    assert blocks
    exec("\n".join(blocks), names)


def test_the_examples_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(ROOT / "README.md")
    assert lbq.load(tmp_path / "net.lbq").is_integer


def test_the_example_of_the_page_about_leaving_training_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, images = lbq.resnet20(10, width=1 / 16), torch.randn(2, 3, 32, 32)
    raw_bytes = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    page = ROOT / "docs" / "deploy" / "lowering.md"
    run_blocks(page, lbq=lbq, model=model, images=images, raw_bytes=raw_bytes)


def test_the_example_of_the_page_about_training_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_blocks(ROOT / "docs" / "training.md")
    assert float(capsys.readouterr().out) > 0.2
