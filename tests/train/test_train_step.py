"""What is not finite never reaches the weights, and every process decides alike."""

import math
from contextlib import nullcontext

import pytest
import torch

from lbq.data import Batch, open_data
from lbq.errors import NonFiniteError
from lbq.train.distributed import ProcessGroup
from lbq.train.optim import OptimConfig
from lbq.train.prepare import build_gradients, build_state
from lbq.train.train_step import TrainStep

ALONE = ProcessGroup(0, 1, torch.device("cpu"))


def batch(value=0.0):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 3, 8, 8, generator=generator)
    x[3, 0, 0, 0] += value
    return Batch(x, torch.arange(16) % 10, torch.arange(100, 116))


@pytest.fixture
def build(tiny, tmp_path):
    def built(**changes):
        recipe = tiny.tiny_recipe(**changes)
        state = build_state(recipe, open_data(recipe.data, tmp_path), ALONE)
        return state, TrainStep(state, build_gradients(recipe, state, ALONE), recipe, ALONE)

    return built


def learn(train_step, each, lr=0.1):
    return train_step.run(each, lr=lr, stop=False, watching=nullcontext())


def copies(state):
    return {
        name: tensor.clone()
        for part in state.tensors().values()
        for name, tensor in part.items()
        if not name.endswith("num_batches_tracked")
    }


def test_a_step_lowers_the_loss_and_tells_its_numbers(build):
    _, train_step = build()
    verdicts = [learn(train_step, batch()) for _ in range(5)]
    assert verdicts[-1].loss < verdicts[0].loss
    assert all(0 <= result.correct <= 16 and result.norm > 0 for result in verdicts)
    assert train_step.run(batch(), lr=0.1, stop=True, watching=nullcontext()).stop == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_poisoned_batch_stops_the_run_and_leaves_every_tensor_alone(build, value, steps_before):
    state, train_step = build()
    for _ in range(steps_before):
        learn(train_step, batch())
    before = copies(state)
    with pytest.raises(NonFiniteError, match=r"process 0, samples 100, 101") as caught:
        learn(train_step, batch(value))
    assert "weights are untouched" in str(caught.value)
    assert "seed 3" in str(caught.value)
    after = copies(state)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_poisoned_batch_can_be_skipped_three_times_in_a_row(build):
    state, train_step = build(on_nonfinite="skip")
    for _ in range(2):  # a good step in between starts the count anew
        before = copies(state)
        for skipped in (1, 2, 3):
            learn(train_step, batch(math.nan))
            assert state.progress.skipped == skipped
        after = copies(state)
        assert all(torch.equal(before[name], after[name]) for name in before)
        learn(train_step, batch())
        assert state.progress.skipped == 0
    for _ in range(3):
        learn(train_step, batch(math.nan))
    with pytest.raises(NonFiniteError):
        learn(train_step, batch(math.nan))


def test_a_gradient_beyond_all_bounds_is_refused_though_the_loss_is_finite(build):
    state, train_step = build()
    state.model.classifier[0][2].weight.register_hook(lambda gradient: gradient * 1e30)
    before = copies(state)
    with pytest.raises(NonFiniteError, match="every process's own loss is finite"):
        learn(train_step, batch())
    after = copies(state)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_an_overflow_of_float16_is_no_fault_and_shrinks_the_scale(build):
    state, train_step = build(precision="fp16")
    handle = state.model.classifier[0][2].weight.register_hook(lambda gradient: gradient * math.inf)
    scale = state.precision.state()["scale"]
    weights = state.model.classifier[0][2].weight.detach().clone()
    learn(train_step, batch())
    assert state.precision.state()["scale"] == scale / 2
    assert torch.equal(weights, state.model.classifier[0][2].weight)
    handle.remove()
    learn(train_step, batch())
    assert not torch.equal(weights, state.model.classifier[0][2].weight)
    assert state.progress.skipped == 0


def test_float16_that_never_stops_overflowing_is_a_fault(build):
    state, train_step = build(precision="fp16")
    state.model.classifier[0][2].weight.register_hook(lambda gradient: gradient * math.inf)
    state.progress.skipped = 30
    with pytest.raises(NonFiniteError, match="float16 overflowed in every step"):
        learn(train_step, batch())


def test_a_long_gradient_is_clipped(build):
    state, train_step = build(
        optim=OptimConfig(lr=1.0, momentum=0.0, nesterov=False, clip_norm=1e-3)
    )
    before = [p.detach().clone() for p in state.model.parameters()]
    for group in state.optimizer.param_groups:
        group["weight_decay"] = 0.0
    learn(train_step, batch(), lr=1.0)
    moves = [p.detach() - old for p, old in zip(state.model.parameters(), before, strict=True)]
    assert torch.nn.utils.get_total_norm(moves).item() == pytest.approx(1e-3, rel=1e-3)


def test_the_moving_average_follows_the_weights(build):
    state, train_step = build(ema_decay=0.5)
    learn(train_step, batch())
    first = [p.detach().clone() for p in state.model.parameters()]
    learn(train_step, batch())
    second = list(state.model.parameters())
    for mean, one, other in zip(state.average.module.parameters(), first, second, strict=True):
        torch.testing.assert_close(mean, 0.5 * one + 0.5 * other)
