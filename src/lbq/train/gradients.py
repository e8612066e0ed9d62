"""The gradient of one global batch, computed by all processes together, in one of two ways.

Either way every process ends with the same gradients in ``.grad`` and the same numbers
(:class:`ReducedStats`), in one collective beside the gradients.

:class:`AveragedGradients` is the fast way: torch averages the gradients of the processes while the
backward still runs. How the sum is ordered depends on the number of processes, so the bits do too.

:class:`CanonicalGradients` cuts the batch into a fixed number of shards, treats each as if it were
alone (its own batch norm statistics, its own gradient) and adds the shards up in their order. The
bits depend on the number of shards only: one process may compute all of them, or each its own.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lbq.train.batchnorm_stats import BatchNormStats
from lbq.train.distributed import ProcessGroup
from lbq.train.precision import Precision

_GATHER_CHUNK = 2**22
"""Values of a gradient that are gathered at a time in canonical mode."""


class ReducedStats(NamedTuple):
    """What all processes know alike after the backward of a step."""

    loss: Tensor
    """Mean loss over the global batch."""
    correct: Tensor
    """Right answers in the global batch."""
    stop: Tensor
    """Positive if any process was asked to stop."""
    statistics: Tensor
    """Running statistics of the batch norms, not yet written back."""


class AveragedGradients:
    """Gradients averaged over the processes by torch's DistributedDataParallel.

    Args:
        model: network and loss (:class:`lbq.train.loss.ModelWithLoss`).
        group: the processes.
        precision: of forward and backward.
        accumulate: parts that a process's slice is split_batch into, one backward each.
    """

    def __init__(
        self, model: nn.Module, group: ProcessGroup, *, precision: Precision, accumulate: int = 1
    ) -> None:
        self.local_loss = torch.zeros(())
        self._group = group
        self._model = group.wrap(model)
        self._precision = precision
        self._accumulate = accumulate
        self._statistics = BatchNormStats(model)

    def compute(self, inputs: Tensor, target: Tensor, *, stop: bool) -> ReducedStats:
        """Run forward and backward, and share the outcome."""
        losses: list[Tensor] = []
        corrects: list[Tensor] = []
        for part, (x, y) in enumerate(split_batch(inputs, target, self._accumulate)):
            is_last = part == self._accumulate - 1
            with nullcontext() if is_last else self._group.no_sync(self._model):
                with self._precision.autocast():
                    loss, correct = self._model(x, y)
                self._precision.scaled(loss / self._accumulate).backward()
            losses.append(loss.detach())
            corrects.append(correct)
        self.local_loss = torch.stack(losses).mean()
        correct = torch.stack(corrects).sum()
        vector = self._group.all_reduce_(
            _pack_stats(self.local_loss, correct, stop, self._statistics)
        )
        return _unpack_stats(vector, parts=self._group.size)


class CanonicalGradients:
    """Gradients whose bits do not depend on the number of processes.

    Args:
        model: network and loss (:class:`lbq.train.loss.ModelWithLoss`).
        group: the processes; their number divides ``shards``.
        precision: of forward and backward.
        shards: how many the global batch is split_batch into, whatever the number of processes.
    """

    def __init__(
        self, model: nn.Module, group: ProcessGroup, *, precision: Precision, shards: int
    ) -> None:
        self.local_loss = torch.zeros(())
        self._group = group
        self._model = model
        self._precision = precision
        self._shards = shards
        self._statistics = BatchNormStats(model)
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def compute(self, inputs: Tensor, target: Tensor, *, stop: bool) -> ReducedStats:
        """Run forward and backward shard by shard, and add up in the order of shards."""
        mine = self._shards // self._group.size
        before = self._statistics.read()
        gradients: list[Tensor] = []
        packed: list[Tensor] = []
        losses: list[Tensor] = []
        for x, y in split_batch(inputs, target, mine):
            self._model.zero_grad(set_to_none=True)
            self._statistics.write(before)
            with self._precision.autocast():
                loss, correct = self._model(x, y)
            self._precision.scaled(loss).backward()
            losses.append(loss.detach())
            gradients.append(torch.cat([_gradient(p).reshape(-1) for p in self._parameters]))
            packed.append(_pack_stats(losses[-1], correct, stop, self._statistics))
        self._statistics.subtract_batches(mine - 1)
        self.local_loss = torch.stack(losses).mean()
        self._share(torch.stack(gradients))
        vector = _ordered_sum(self._group.all_gather(torch.stack(packed)).flatten(0, 1))
        return _unpack_stats(vector, parts=self._shards)

    def _share(self, gradients: Tensor) -> None:
        """Replace every ``.grad`` by the mean over all shards, added in their order."""
        pieces = [
            _ordered_sum(self._group.all_gather(piece.contiguous()).flatten(0, 1))
            for piece in gradients.split(_GATHER_CHUNK, dim=1)
        ]
        mean = torch.cat(pieces) / self._shards
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, values in zip(self._parameters, mean.split(sizes), strict=True):
            _gradient(parameter).copy_(values.view(parameter.shape))


Gradients = AveragedGradients | CanonicalGradients
"""Either way; ``local_loss`` is the loss over a process's own slice, to find who brought a NaN."""


def split_batch(inputs: Tensor, target: Tensor, parts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a batch into equal parts, along the batch axis of images or of sequences of frames."""
    axis = 1 if inputs.dim() == 5 else 0
    yield from zip(inputs.chunk(parts, axis), target.chunk(parts), strict=True)


def _pack_stats(loss: Tensor, correct: Tensor, stop: bool, statistics: BatchNormStats) -> Tensor:
    stop_flag = torch.full_like(loss, float(stop))
    return torch.cat([torch.stack([loss, correct.to(loss.dtype), stop_flag]), statistics.read()])


def _unpack_stats(total: Tensor, *, parts: int) -> ReducedStats:
    return ReducedStats(
        loss=total[0] / parts, correct=total[1], stop=total[2], statistics=total[3:] / parts
    )


def _ordered_sum(rows: Tensor) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:  # one by one: how torch's own sum groups its terms depends on the shape
        total += row
    return total


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None  # every parameter of every neuron gets one (tests hold it)
    return parameter.grad
