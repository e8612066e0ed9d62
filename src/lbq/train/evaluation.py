"""Accuracy on the test set: every sample once, counted in integers, whatever the processes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lbq.data import Data, eval_batches
from lbq.errors import RunError
from lbq.train.distributed import ProcessGroup
from lbq.train.precision import Precision
from lbq.train.prefetch import prefetch_to_device


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a network knew at some step of its training."""

    step: int
    """Steps trained."""
    epoch: int
    """Epochs trained."""
    correct: int
    """Right answers."""
    count: int
    """Samples asked: all of the test set."""
    loss: float
    """Mean cross-entropy, without smoothing."""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.count


@torch.inference_mode()
def count_correct(
    model: nn.Module,
    data: Data,
    group: ProcessGroup,
    *,
    precision: Precision,
    batch: int,
    num_workers: int = 0,
    channels_last: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    tell: Callable[[int, int], None] | None = None,
) -> tuple[int, int, float] | None:
    """Return right answers, samples and mean loss over the whole test set, alike on every process.

    Nothing is padded or dropped: the counts are those of one process, for any number of them. None
    if any process was asked to stop before it was through. ``tell`` is told after every batch how
    many samples of how many this process has asked.
    """
    was_training = model.training
    model.eval()
    correct = torch.zeros((), dtype=torch.int64, device=group.device)
    count, loss, stopped = 0, torch.zeros((), dtype=torch.float64, device=group.device), False
    batches = eval_batches(
        data, batch=batch, rank=group.rank, world_size=group.size, num_workers=num_workers
    )
    for x, target, _ in prefetch_to_device(batches, group.device, channels_last=channels_last):
        if stopped := should_stop():
            break
        with precision.autocast():
            logits = model(x)
        correct += (logits.argmax(1) == target).sum()
        loss += F.cross_entropy(logits.float(), target, reduction="sum").double()
        count += len(target)
        if tell is not None:
            tell(count, -(-data.num_test // group.size))
    model.train(was_training)
    counts = torch.stack([correct, *torch.tensor([count, stopped]).to(correct)])
    num_correct, num_samples, num_stopped = group.all_reduce_(counts).tolist()
    total = group.all_reduce_(loss).item()
    if num_stopped:
        return None
    if num_samples != data.num_test:
        raise RunError(
            f"evaluated {num_samples} samples, but the test set has {data.num_test}; an accuracy "
            f"over another set is worth nothing"
        )
    return num_correct, num_samples, total / num_samples
