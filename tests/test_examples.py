"""Every example runs, and is short."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
TAKE_FILES = {"numpy_reader", "label_with_ray", "serve_onnx"}
"""Run by test_numpy_reader.py, test_ray.py and test_serve_onnx.py."""
EXAMPLES = [path for path in EXAMPLES if path.stem not in TAKE_FILES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_fits_on_a_page(path):
    assert len(path.read_text().splitlines()) <= 60
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
