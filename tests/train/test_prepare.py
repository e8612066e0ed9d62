import os
from pathlib import Path

import pytest
import torch

from lbq.data import open_data
from lbq.train.distributed import ProcessGroup
from lbq.train.engine import RunOptions, train
from lbq.train.gradients import AveragedGradients, CanonicalGradients
from lbq.train.prepare import build_gradients, build_state, torch_settings

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)


@pytest.fixture
def build(tiny, tmp_path):
    def built(**changes):
        recipe = tiny.tiny_recipe(**changes)
        return build_state(recipe, open_data(recipe.data, tmp_path), ALONE)

    return built


def test_the_seed_decides_the_weights(build):
    one, same, other = (build(seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_weights_lie_in_the_memory_order_asked_for(build):
    for channels_last in (True, False):
        weight = build(channels_last=channels_last).model.stages[1][0].synapse1[0].weight
        is_last = weight.is_contiguous(memory_format=torch.channels_last)
        assert is_last == channels_last


def test_there_is_a_moving_average_only_if_asked_for(build):
    assert build().average is None
    assert build(ema_decay=0.9).average is not None


def test_the_recipe_chooses_how_gradients_are_computed(tiny, build):
    for mode, kind in (("samples", AveragedGradients), ("canonical", CanonicalGradients)):
        recipe = tiny.tiny_recipe(deterministic=mode)
        assert isinstance(build_gradients(recipe, build(), ALONE), kind)


def global_settings():
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        torch.get_rng_state().tolist(),
    )


@pytest.fixture
def unusual_settings(monkeypatch):
    """Settings that no recipe would choose, restored after the test."""
    before = torch.get_num_threads()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def test_canonical_mode_fixes_threads_and_kernels(tiny, unusual_settings):
    with torch_settings(tiny.tiny_recipe(), CPU, threads=2):
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.benchmark
    with torch_settings(tiny.tiny_recipe(deterministic="canonical"), CPU):
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize("mode", ["samples", "canonical"])
def test_training_leaves_the_settings_of_torch_as_they_were(mode, tiny, tmp_path, unusual_settings):
    recipe = tiny.tiny_recipe(epochs=1, deterministic=mode)
    before = global_settings()
    train(recipe, tmp_path, RunOptions(device="cpu", threads=1, stop_at=1))
    assert global_settings() == before

    def interrupt(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, RunOptions(device="cpu", threads=1), callbacks=[interrupt])
    assert global_settings() == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_network_is_trained_saved_and_continued(tiny, tmp_path, monkeypatch):
    """Without code generation, which takes minutes; tests/models/test_compile.py has that."""
    real = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: real(model, backend="eager"))
    recipe = tiny.tiny_recipe(epochs=1, compile=True)
    options = RunOptions(device="cpu", cache=Path("/nonexistent"), stop_at=2)
    assert train(recipe, tmp_path, options).step == 2
    outcome = train(recipe, tmp_path, RunOptions(device="cpu", cache=Path("/nonexistent")))
    assert (outcome.ending, outcome.step) == ("finished", 4)
