"""Users' networks trained by ``fit`` on real CIFAR-10: short forms of the proofs."""

import importlib
import os
import random
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif("LBQ_DATA" not in os.environ, reason="needs LBQ_DATA")

HERE = Path(__file__).parent


@pytest.fixture
def proofs(monkeypatch):
    """The proofs, on a few images."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("CIFAR10_SAMPLES", "150,50")
    sys.modules.pop("cifar10", None)
    return importlib.import_module("proofs")


@pytest.mark.multi
@pytest.mark.parametrize("name", ["vgg", "transformer", "mlp"])
def test_a_users_network_ends_with_the_same_bits_after_kills_and_with_workers(
    proofs, name, tmp_path
):
    rng = random.Random(name)
    expected = proofs.whole(name, tmp_path / "whole")
    assert proofs.whole(name, tmp_path / "workers", workers=2) == expected
    proofs.kill(name, tmp_path / "killed", expected, kills=2, longest=1.5, rng=rng)


@pytest.mark.multi
def test_two_processes_under_torchrun_resume_after_a_killed_rank(proofs, tmp_path, monkeypatch):
    monkeypatch.setenv("CIFAR10_SAMPLES", "400,50")  # sixteen steps: the kill comes before the end
    assert proofs.torchrun("vgg", tmp_path / "two") == 0
    rng = random.Random(0)
    assert proofs.torchrun("vgg", tmp_path / "killed", kill_after=0.0, rng=rng) != 0
    assert proofs.torchrun("vgg", tmp_path / "killed") == 0
    assert proofs.final_hashes(tmp_path / "killed") == proofs.final_hashes(tmp_path / "two")
