"""Accuracy on the whole test set, counted in integers for any number of processes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from lbq.data import Data, eval_batches
from lbq.errors import RunError
from lbq.train.distributed import ProcessGroup
from lbq.train.optim import Precision
from lbq.train.prefetch import prefetch_to_device


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Accuracy and loss of a network after some steps of training."""

    step: int
    """Steps trained."""
    epoch: int
    """Epochs trained."""
    correct: int
    """Correct predictions."""
    count: int
    """Samples of the test set."""
    loss: float
    """Mean cross-entropy, without smoothing."""

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
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
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int, float] | None:
    """Return correct predictions, samples and mean loss over the test set, on every process.

    No sample is padded or dropped, so the counts do not depend on the number of processes. Returns
    None if any process was asked to stop. ``progress`` is called after every batch with the number
    of samples done and the total of this process.
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
        if progress is not None:
            progress(count, -(-data.num_test // group.size))
    model.train(was_training)
    counts = torch.stack([correct, *torch.tensor([count, stopped]).to(correct)])
    num_correct, num_samples, num_stopped = group.all_reduce_(counts).tolist()
    total = group.all_reduce_(loss).item()
    if num_stopped:
        return None
    if num_samples != data.num_test:
        raise RunError(
            f"evaluated {num_samples} samples, but the test set has {data.num_test}; the "
            f"data set changed or lost samples"
        )
    return num_correct, num_samples, total / num_samples
