"""Scores on a whole test set, for any number of processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lbq.data import Data, eval_batches
from lbq.data.sampler import RandomStream, random_bits
from lbq.data.user_data import UserData
from lbq.errors import RunError, ShapeError
from lbq.train.distributed import ProcessGroup
from lbq.train.loss import Loss, Metric, answer_of, batch_loss, check_metrics
from lbq.train.optim import Precision
from lbq.train.prefetch import prefetch_to_device


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of a network after some steps of training."""

    step: int
    """Steps trained."""
    epoch: int
    """Epochs trained."""
    correct: int | None
    """Correct predictions; None if accuracy is not among the metrics."""
    count: int
    """Samples of the test set."""
    loss: float
    """Mean loss: cross-entropy without smoothing, or the loss of the caller."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Means of the other metrics."""

    @property
    def accuracy(self) -> float:
        """Share of correct predictions; NaN if it was not measured."""
        return float("nan") if self.correct is None else self.correct / self.count

    def describe(self) -> str:
        """Describe the scores in words."""
        words = [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        if self.correct is None:
            return ", ".join([f"loss {self.loss:.4g}", *words])
        return ", ".join([f"{self.accuracy:.2%} ({self.correct} of {self.count})", *words])


def best_of(evaluations: list[Evaluation] | tuple[Evaluation, ...]) -> Evaluation | None:
    """Return the evaluation with most correct predictions, or with the lowest loss.

    The loss decides if no evaluation counts predictions. The choice is made on the test set.
    """
    return max(
        evaluations,
        key=lambda found: -found.loss if found.correct is None else found.correct,
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores over a whole test set."""

    correct: int | None
    count: int
    loss: float
    metrics: dict[str, float]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Data | UserData,
    group: ProcessGroup,
    *,
    precision: Precision,
    batch: int,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    seed: int = 0,
    num_workers: int = 0,
    channels_last: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] | None = None,
) -> Scores | None:
    """Return the scores over the test set, the same on every process.

    No sample is padded or dropped, so counts do not depend on the number of processes. Random
    numbers that the model draws depend on the seed and the batch. Returns None if any process was
    asked to stop. ``progress`` is called after every batch with the number of samples done and the
    total of this process.
    """
    was_training = model.training
    model.eval()
    metrics = check_metrics(metrics, loss)
    totals = torch.zeros(len(metrics) + 1, dtype=torch.float64, device=group.device)
    count, stopped = 0, False
    batches = eval_batches(
        data, batch=batch, rank=group.rank, world_size=group.size, num_workers=num_workers
    )
    with torch.random.fork_rng([group.device] if group.device.type == "cuda" else []):
        for x, target, ids in prefetch_to_device(
            batches, group.device, channels_last=channels_last
        ):
            if stopped := should_stop():
                break
            seed_model(RandomStream.EVALUATION, seed=seed, step=0, part=int(ids[0]))
            with precision.autocast():
                output = answer_of(model, x)
            found = [batch_loss(output, target, loss)]
            found += [_sum_metric(name, each, output, target) for name, each in metrics.items()]
            totals += torch.stack([value.double() for value in found])
            count += len(target)
            if progress is not None:
                progress(count, -(-data.num_test // group.size))
    model.train(was_training)
    counts = torch.tensor([count, int(stopped)], device=group.device)
    num_samples, num_stopped = group.all_reduce_(counts).tolist()
    total_loss, *sums = group.all_reduce_(totals).tolist()
    if num_stopped:
        return None
    if num_samples != data.num_test:
        raise RunError(
            f"evaluated {num_samples} samples, but the test set has {data.num_test}; the "
            f"data set changed or lost samples"
        )
    named = dict(zip(metrics, sums, strict=True))
    correct = round(named.pop("accuracy")) if "accuracy" in named else None
    return Scores(
        correct=correct,
        count=num_samples,
        loss=total_loss / num_samples,
        metrics={name: value / num_samples for name, value in named.items()},
    )


def seed_model(stream: RandomStream, *, seed: int, step: int, part: int) -> None:
    """Seed torch's generators for one forward pass, as a function of the arguments only."""
    bits = random_bits(stream, seed=seed, epoch=step, start=part, count=1, width=1)
    torch.manual_seed(int(bits[0, 0] >> 1))


def _sum_metric(name: str, metric: Metric, output: Tensor, target: Tensor) -> Tensor:
    values = metric(output, target)
    if values.shape != target.shape[:1]:
        raise ShapeError(
            f"the metric {name!r} must return one number per sample, [{len(target)}], got "
            f"{list(values.shape)}"
        )
    return values.sum(dtype=torch.float64)
