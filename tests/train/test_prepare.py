from pathlib import Path

import pytest
import torch

from lbq.data import open_data
from lbq.train.engine import RunOptions, train
from lbq.train.gradients import AveragedGradients, CanonicalGradients
from lbq.train.prepare import build_gradients, build_state, prepare_torch
from lbq.train.world import World

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)


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


def test_canonical_mode_fixes_threads_and_kernels(tiny):
    threads = torch.get_num_threads()
    try:
        prepare_torch(tiny.tiny_recipe(), CPU, threads=2)
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        prepare_torch(tiny.tiny_recipe(deterministic="canonical"), CPU)
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        prepare_torch(tiny.tiny_recipe(), CPU, threads=threads)


@pytest.mark.as_shipped
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
