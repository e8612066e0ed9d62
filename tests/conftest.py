"""What many tests share: every neuron of the library, built fresh; a pool of processes."""

import importlib.util
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when a Hugging Face library is imported

import pytest
import torch
from hypothesis import settings
from native_build import lbq_run, native_build  # noqa: F401 -- fixtures

from lbq import neurons

settings.register_profile("lbq", parent=settings(), deadline=None)  # a busy machine is no failure
settings.load_profile("lbq")

TIMESTEPS = 3

NEURONS = {
    "V1": lambda: neurons.BurstLIF(step=neurons.FixedStep(), surrogate=neurons.BoxET()),
    "V2": lambda: neurons.BurstLIF(step=neurons.FixedStep(), surrogate=neurons.ReLSGET()),
    "V3": lambda: neurons.BurstLIF(step=neurons.LearnedStep(), surrogate=neurons.BoxET()),
    "LBQ": neurons.BurstLIF,
    "LBQ per channel": lambda: neurons.BurstLIF(step=neurons.LearnedStep(0.3, channels=4)),
    "LBQ lsq": lambda: neurons.BurstLIF(step=neurons.LearnedStep(gradient_scale="lsq")),
    "LBQ learned decay": lambda: neurons.BurstLIF(learn_decay=True, tau=2.0),
    "LBQ level reset": lambda: neurons.BurstLIF(max_level=20, reset_mode="level"),
    "LBQ no reset": lambda: neurons.BurstLIF(max_level=1, reset_mode="none", detach_carry=True),
    "matched box": lambda: neurons.BurstLIF(surrogate=neurons.MatchedBox(), detach_reset=True),
    "clip box": lambda: neurons.BurstLIF(surrogate=neurons.ClipBox()),
    "tailed box": lambda: neurons.BurstLIF(surrogate=neurons.TailedBox()),
    "binary": neurons.BinaryLIF,
    "ternary fixed": neurons.TernaryLIF,
    "ternary learned": lambda: neurons.TernaryLIF(step=neurons.LearnedStep()),
    "ternary original": neurons.OriginalTernaryLIF,
    "I-LIF": neurons.IntegerLIF,
    "MLF": neurons.MultiLevelLIF,
    "LM-HT": lambda: neurons.LMHT(TIMESTEPS),
}


def pytest_generate_tests(metafunc):
    """Give ``build_neuron`` every neuron, ``build_streaming_neuron`` those that can stream."""
    if "build_neuron" in metafunc.fixturenames:
        metafunc.parametrize("build_neuron", NEURONS.values(), ids=NEURONS)
    if "build_streaming_neuron" in metafunc.fixturenames:
        streaming = {name: build for name, build in NEURONS.items() if name != "LM-HT"}
        metafunc.parametrize("build_streaming_neuron", streaming.values(), ids=streaming)


@pytest.fixture
def currents() -> torch.Tensor:
    """A sequence that reaches every level of a five-level neuron: ``[T, B, C, H, W]``."""
    generator = torch.Generator().manual_seed(7)
    return 2 * torch.randn(TIMESTEPS, 6, 4, 5, 3, generator=generator)


@pytest.fixture(scope="session")
def pool():
    """A warm process that forks the ranks of a job (tests/worker_pool.py)."""
    pool = _module("worker_pool").WorkerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def tiny():
    """The smallest run that still has everything (tests/tiny.py)."""
    return _module("tiny")


def _module(name):
    """Load a file that tests share and that is no test."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
