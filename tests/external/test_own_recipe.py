"""A SpikingJelly network trained by ``fit`` on real recordings: a short form of the proofs."""

import importlib
import os
import random
from pathlib import Path

import pytest

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    pytest.importorskip("spikingjelly", reason="installed by .ci/external")


@pytest.mark.skipif("LBQ_DATA" not in os.environ, reason="needs LBQ_DATA")
def test_a_spikingjelly_network_ends_with_the_same_bits_after_kills(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "own_recipes"))
    monkeypatch.setenv("NMNIST_SAMPLES", "100,20")
    proofs = importlib.import_module("proofs")
    name = "spikingjelly_network"
    importlib.import_module(name)
    expected = proofs.whole(name, tmp_path / "whole")
    assert proofs.whole(name, tmp_path / "workers", workers=2) == expected
    rng = random.Random(0)
    proofs.kill(name, tmp_path / "killed", expected, kills=2, longest=1.5, rng=rng)
