"""Fixtures of the data tests: real data where it exists, and a shared cache."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data():
    if "LBQ_DATA" not in os.environ:
        pytest.skip("LBQ_DATA is not set: no real data to read")
    return Path(os.environ["LBQ_DATA"])


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache that the tests of a session share, so that a set is packed once."""
    return tmp_path_factory.mktemp("cache")
