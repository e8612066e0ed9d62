"""What the tests of faults share."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def trials():
    """Single trials of every fault (trials.py)."""
    path = Path(__file__).with_name("trials.py")
    spec = importlib.util.spec_from_file_location("trials", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
