import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from lbq.data import Batch, open_data
from lbq.errors import NonFiniteError
from lbq.train.distributed import ProcessGroup
from lbq.train.engine import build_gradients, build_state
from lbq.train.optim import OptimConfig
from lbq.train.train_step import BatchNormStats, TrainStep, split_batch


def test_what_is_read_can_be_written_back():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    statistics = BatchNormStats(model)
    fresh = statistics.read()
    assert fresh.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 4 + [1.0] * 4
    model(torch.randn(8, 3, 2, 2))
    assert not torch.equal(statistics.read(), fresh)
    statistics.write(fresh)
    assert torch.equal(statistics.read(), fresh)
    assert model[1].num_batches_tracked == 1
    statistics.subtract_batches(1)
    assert model[1].num_batches_tracked == 0


def test_the_mean_over_halves_is_the_statistic_of_the_whole_up_to_the_spread_between_them():
    whole, halves = nn.BatchNorm2d(2), [nn.BatchNorm2d(2), nn.BatchNorm2d(2)]
    images = torch.randn(64, 2, 4, 4)
    whole(images)
    for half, part in zip(halves, images.chunk(2), strict=True):
        half(part)
    mean = torch.stack([BatchNormStats(half).read() for half in halves]).mean(0)
    torch.testing.assert_close(mean, BatchNormStats(whole).read(), rtol=0.02, atol=0.01)


def test_a_network_without_batch_norms_has_no_statistics():
    statistics = BatchNormStats(nn.Linear(2, 2))
    assert statistics.read().numel() == 0
    statistics.write(statistics.read())
    statistics.subtract_batches(3)


def test_a_batch_is_cut_along_its_batch_axis():
    images, frames = torch.randn(8, 3, 4, 4), torch.randn(2, 8, 2, 4, 4)
    target = torch.arange(8)
    for inputs, axis in ((images, 0), (frames, 1)):
        parts = list(split_batch(inputs, target, 4))
        assert torch.equal(torch.cat([x for x, _ in parts], axis), inputs)
        assert torch.equal(torch.cat([y for _, y in parts]), target)


@pytest.mark.multi
def test_averaged_gradients_and_statistics_are_the_same_on_every_process(pool):
    alone = pool.run("gradients_of_one_batch", mode="averaged")[0]
    for world in (2, 4):
        answers = pool.run("gradients_of_one_batch", mode="averaged", world=world, stopping_rank=1)
        assert all(answer == answers[0] for answer in answers)
        assert answers[0]["stop"] == 1
        assert alone["stop"] == 0
        assert answers[0]["loss"] == pytest.approx(alone["loss"], rel=0.2)  # other batch norms


@pytest.mark.multi
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_canonical_gradients_do_not_depend_on_the_number_of_processes(pool, kind):
    found = [
        answer
        for world in (1, 2, 4)
        for answer in pool.run("gradients_of_one_batch", mode="canonical", world=world, kind=kind)
    ]
    assert all(answer == found[0] for answer in found)


@pytest.mark.multi
def test_canonical_shards_are_what_averaging_processes_compute(pool):  # up to rounding
    canonical = pool.run("gradients_of_one_batch", mode="canonical", shards=4)[0]
    averaged = pool.run("gradients_of_one_batch", mode="averaged", world=4)[0]
    accumulated = pool.run("gradients_of_one_batch", mode="averaged", accumulate=4)[0]
    for other in (averaged, accumulated):
        assert canonical["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-5)
        assert canonical["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert canonical["correct"] == other["correct"]


@pytest.mark.multi
def test_accumulating_on_two_processes_is_averaging_on_four(pool):
    two = pool.run("gradients_of_one_batch", mode="averaged", world=2, accumulate=2)[0]
    four = pool.run("gradients_of_one_batch", mode="averaged", world=4)[0]
    assert two["grad_norm"] == pytest.approx(four["grad_norm"], rel=1e-5)
    assert two["loss"] == pytest.approx(four["loss"], rel=1e-6)


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
    return train_step.run(each, lr=lr, stop=False, hooks=nullcontext())


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
    assert train_step.run(batch(), lr=0.1, stop=True, hooks=nullcontext()).stop == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_poisoned_batch_stops_the_run_and_leaves_every_tensor_alone(build, value, steps_before):
    state, train_step = build()
    for _ in range(steps_before):
        learn(train_step, batch())
    before = copies(state)
    with pytest.raises(NonFiniteError, match=r"process 0, samples 100, 101") as caught:
        learn(train_step, batch(value))
    assert "weights are unchanged" in str(caught.value)
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
    with pytest.raises(NonFiniteError, match="loss of every process is finite"):
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
