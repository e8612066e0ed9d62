"""Fixtures of the tests of lbq.analysis."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def invented():
    """An invented run (invented.py)."""
    path = Path(__file__).with_name("invented.py")
    spec = importlib.util.spec_from_file_location("invented", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
