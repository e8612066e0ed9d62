import pytest
import torch

from lbq.train.gradients import split_batch


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
