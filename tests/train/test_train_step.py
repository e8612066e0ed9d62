import math
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from lbq.data import Batch
from lbq.errors import NonFiniteError
from lbq.train.build import build_gradients
from lbq.train.distributed import ProcessGroup
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


def test_a_batch_is_split_along_its_batch_axis():
    images, frames = torch.randn(8, 3, 4, 4), torch.randn(2, 8, 2, 4, 4)
    target = torch.arange(8)
    for inputs, axis in ((images, 0), (frames, 1)):
        parts = list(split_batch(inputs, target, 4, axis=axis))
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
def test_shards_processes_and_micro_batches_compute_the_same_up_to_rounding(pool):
    canonical = pool.run("gradients_of_one_batch", mode="canonical", shards=4)[0]
    for world, accumulate in ((4, 1), (2, 2), (1, 4)):
        options = {"mode": "averaged", "world": world, "accumulate": accumulate}
        averaged = pool.run("gradients_of_one_batch", **options)[0]
        assert canonical["grad_norm"] == pytest.approx(averaged["grad_norm"], rel=1e-5)
        assert canonical["loss"] == pytest.approx(averaged["loss"], rel=1e-6)
        assert canonical["correct"] == averaged["correct"]


ALONE = ProcessGroup(0, 1, torch.device("cpu"))


def make_batch(value=0.0):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 3, 8, 8, generator=generator)
    x[3, 0, 0, 0] += value
    return Batch(x, torch.arange(16) % 10, torch.arange(100, 116))


@pytest.fixture
def build_step(tiny, build):
    def built(**changes):
        recipe, state = tiny.tiny_recipe(**changes), build(**changes)
        return state, TrainStep(state, build_gradients(recipe, state, ALONE), recipe, ALONE)

    return built


def run(train_step, batch, lr=0.1, stop=False):
    return train_step.run(batch, lr=lr, stop=stop, hooks=nullcontext())


@contextmanager
def unchanged(state):
    """Fail if a tensor of the state, except a batch counter, is different after the block."""

    def copies():
        tensors = [part.items() for part in state.tensors().values()]
        return {name: tensor.clone() for part in tensors for name, tensor in part}

    before = copies()
    yield
    for name, tensor in copies().items():
        assert torch.equal(tensor, before[name]) or name.endswith("num_batches_tracked"), name


BATCH = make_batch()
NAN_BATCH = make_batch(math.nan)


def test_a_step_lowers_the_loss_and_returns_its_numbers(build_step):
    _, train_step = build_step()
    results = [run(train_step, BATCH) for _ in range(5)]
    assert results[-1].loss < results[0].loss
    assert all(0 <= result.correct <= 16 and result.norm > 0 for result in results)
    assert run(train_step, BATCH, stop=True).stop == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_nonfinite_batch_stops_the_run_and_changes_no_tensor(build_step, value, steps_before):
    state, train_step = build_step()
    for _ in range(steps_before):
        run(train_step, BATCH)
    words = r"seed 3.*process 0, samples 100, 101.*weights are unchanged"
    with unchanged(state), pytest.raises(NonFiniteError, match=words):
        run(train_step, make_batch(value))


def test_a_nonfinite_batch_can_be_skipped_three_times_in_a_row(build_step):
    state, train_step = build_step(on_nonfinite="skip")
    for _ in range(2):  # a good step in between resets the count
        with unchanged(state):
            for skipped in (1, 2, 3):
                run(train_step, NAN_BATCH)
                assert state.progress.skipped == skipped
        run(train_step, BATCH)
        assert state.progress.skipped == 0
    for _ in range(3):
        run(train_step, NAN_BATCH)
    with pytest.raises(NonFiniteError):
        run(train_step, NAN_BATCH)


def test_a_nonfinite_gradient_is_refused_though_the_loss_is_finite(build_step):
    state, train_step = build_step()
    state.model.classifier[0][2].weight.register_hook(lambda gradient: gradient * 1e30)
    words = "loss of every process is finite"
    with unchanged(state), pytest.raises(NonFiniteError, match=words):
        run(train_step, BATCH)


def test_an_overflow_of_float16_keeps_the_weights_and_shrinks_the_scale(build_step):
    state, train_step = build_step(precision="fp16")
    scaler, weight = state.precision.scaler, state.model.classifier[0][2].weight
    handle = weight.register_hook(lambda gradient: gradient * math.inf)
    scale, before = scaler.get_scale(), weight.detach().clone()
    run(train_step, BATCH)
    assert scaler.get_scale() == scale / 2
    assert torch.equal(before, weight)
    handle.remove()
    run(train_step, BATCH)
    assert not torch.equal(before, weight)
    assert state.progress.skipped == 0
    handle = weight.register_hook(lambda gradient: gradient * math.inf)
    state.progress.skipped = 30
    with pytest.raises(NonFiniteError, match="float16 overflowed in every step"):
        run(train_step, BATCH)


def test_a_long_gradient_is_clipped(build_step):
    optim = OptimConfig(lr=1.0, momentum=0.0, nesterov=False, clip_norm=1e-3, weight_decay=0.0)
    state, train_step = build_step(optim=optim)
    before = [p.detach().clone() for p in state.model.parameters()]
    run(train_step, BATCH, lr=1.0)
    moves = [p.detach() - old for p, old in zip(state.model.parameters(), before, strict=True)]
    assert torch.nn.utils.get_total_norm(moves).item() == pytest.approx(1e-3, rel=1e-3)


def test_the_moving_average_follows_the_weights(build_step):
    state, train_step = build_step(ema_decay=0.5)
    run(train_step, BATCH)
    first = [p.detach().clone() for p in state.model.parameters()]
    run(train_step, BATCH)
    second = list(state.model.parameters())
    for mean, one, other in zip(state.average.module.parameters(), first, second, strict=True):
        torch.testing.assert_close(mean, 0.5 * one + 0.5 * other)
