import pytest
import torch

from lbq.config_io import to_document
from lbq.data import Batch, DataConfig
from lbq.errors import RunError
from lbq.train import evaluation
from lbq.train.distributed import ProcessGroup
from lbq.train.optim import Precision

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)


@pytest.mark.multi
def test_every_sample_is_counted_once_by_any_number_of_processes(pool, tiny):  # 10,007 is prime
    data = DataConfig(source="synthetic", size=8, limit=64, limit_test=10_007)
    recipe = to_document(tiny.tiny_recipe(data=data))
    found = [
        answer
        for world in (1, 2, 3, 4)
        for answer in pool.run("count", world=world, recipe=recipe, num_test=10_007, batch=64)
    ]
    assert {(correct, count) for correct, count, _ in found} == {(found[0][0], 10_007)}
    losses = [loss for _, _, loss in found]
    assert max(losses) - min(losses) < 1e-12  # sums of the same numbers, in another order


class Parity(torch.nn.Module):
    """Knows the class of samples whose class is even."""

    def forward(self, x):
        assert not self.training
        logits = torch.zeros(len(x), 4)
        logits[:, 0] = 1.0
        logits[torch.arange(len(x)), x[:, 0, 0, 0].long() // 2 * 2] += 2.0
        return logits


def batches(counts):
    def eval_batches(data, *, batch, rank, world_size, num_workers):
        for count in counts:
            target = torch.arange(count) % 4
            yield Batch(target.float().reshape(-1, 1, 1, 1), target, target)

    return eval_batches


class Data:
    num_test = 12


def count(monkeypatch, counts, should_stop=lambda: False):
    monkeypatch.setattr(evaluation, "eval_batches", batches(counts))
    model = Parity().train()
    precision = Precision("fp32", CPU)
    found = evaluation.evaluate(
        model, Data(), ALONE, precision=precision, batch=8, should_stop=should_stop
    )
    assert model.training  # as it was
    return found


def test_answers_are_counted_and_the_loss_is_a_mean_over_samples(monkeypatch):
    found = count(monkeypatch, [8, 4])
    assert (found.correct, found.count) == (6, 12)
    logits, target = Parity().eval()(torch.arange(4.0).reshape(4, 1, 1, 1)), torch.arange(4)
    assert found.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, target).item())


def test_an_accuracy_over_another_number_of_samples_is_refused(monkeypatch):
    with pytest.raises(RunError, match="evaluated 8 samples, but the test set has 12"):
        count(monkeypatch, [8])


def test_a_stop_ends_an_evaluation_without_a_result(monkeypatch):
    assert count(monkeypatch, [8, 4], should_stop=lambda: True) is None
