"""One training step: gradients of the global batch, all-reduce, checks, optimizer.

Gradients are computed in one of two ways. Both end with the same ``.grad`` and the same
:class:`ReducedStats` on every process, with one collective besides the gradients.

:class:`AveragedGradients` is the fast one: DistributedDataParallel averages the gradients during
the backward pass. The order of the sum, and so its bits, depend on the number of processes.

:class:`CanonicalGradients` splits the batch into a fixed number of shards, computes each with its
own batch norm statistics and gradient, and adds the shards in order. The bits depend on the number
of shards only, whether one process computes all of them or each process its own.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lbq.data import Batch
from lbq.data.sampler import RandomStream
from lbq.errors import NonFiniteError
from lbq.train.checkpoint import TrainingState
from lbq.train.distributed import ProcessGroup
from lbq.train.evaluation import seed_model
from lbq.train.optim import Precision, set_learning_rate
from lbq.train.train_config import TrainConfig

_log = logging.getLogger(__name__)

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

# one kernel for all tensors on a GPU, as in torch's optimizers
_copy_all_ = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
_subtract_ = torch._foreach_sub_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class BatchNormStats:
    """The running means and variances of all batch norms of a model, as one vector.

    Each process normalises with the statistics of its own part of the batch. All processes keep the
    mean of their running statistics. It differs from the statistics of one process by the variance
    between the parts.
    """

    def __init__(self, model: nn.Module) -> None:
        norms = [m for m in model.modules() if isinstance(m, _NORMS) and m.track_running_stats]
        pairs = [(norm.running_mean, norm.running_var) for norm in norms]
        self._tensors = [tensor for pair in pairs for tensor in pair if tensor is not None]
        self._counts = [n.num_batches_tracked for n in norms if n.num_batches_tracked is not None]
        self._device = next(model.parameters()).device
        self._sizes = [tensor.numel() for tensor in self._tensors]

    def read(self) -> Tensor:
        """Return a copy of the statistics, ``[n]`` in float32; empty without batch norms."""
        if not self._tensors:
            return torch.empty(0, device=self._device)
        return torch.cat([tensor.reshape(-1) for tensor in self._tensors])

    def write(self, values: Tensor) -> None:
        """Write values that :meth:`read` returned, or a mean of such values."""
        if self._tensors:
            _copy_all_(self._tensors, list(values.split(self._sizes)))

    def subtract_batches(self, count: int) -> None:
        """Subtract from the batch counters, if one step ran several forward passes."""
        if self._counts and count:
            _subtract_(self._counts, count)


_GATHER_CHUNK = 2**22
"""Gradient values per all-gather in canonical mode."""


class ReducedStats(NamedTuple):
    """Results of the backward pass, reduced over all processes."""

    loss: Tensor
    """Mean loss over the global batch."""
    correct: Tensor
    """Correct predictions in the global batch."""
    stop: Tensor
    """Positive if any process has its stop flag set."""
    statistics: Tensor
    """Batch norm statistics, not yet written to the model."""


class Gradients(ABC):
    """Computes the gradients of a global batch.

    Args:
        model: network with loss (:class:`lbq.train.loss.ModelWithLoss`).
        group: the processes.
        precision: of forward and backward pass.
        parts: number of forward and backward passes: per process, or of all processes together.
        batch_axis: axis of the inputs that is split.
    """

    def __init__(
        self,
        model: nn.Module,
        group: ProcessGroup,
        *,
        precision: Precision,
        parts: int = 1,
        batch_axis: int = 0,
    ) -> None:
        self.local_loss = torch.zeros(())
        """Loss of this process's own samples, to locate a NaN."""
        self._model = model
        self._group = group
        self._precision = precision
        self._parts = parts
        self._batch_axis = batch_axis
        self._statistics = BatchNormStats(model)

    @abstractmethod
    def compute(
        self, inputs: Tensor, target: Tensor, *, stop: bool, seed: int = 0, step: int = 0
    ) -> ReducedStats:
        """Run forward and backward, and reduce the results over all processes.

        Args:
            inputs: this process's part of the global batch.
            target: its targets.
            stop: stop flag of this process.
            seed: of the run; with the step and the part it seeds what the model draws.
            step: steps done before.
        """

    def _parts_of(
        self, inputs: Tensor, target: Tensor, *, parts: int, seed: int, step: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the parts of this process, each with torch's generators seeded for it."""
        split = split_batch(inputs, target, parts, axis=self._batch_axis)
        for index, part in enumerate(split, start=self._group.rank * parts):
            seed_model(RandomStream.MODEL, seed=seed, step=step, part=index)
            yield part

    def _backward(self, x: Tensor, y: Tensor, *, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Add the gradients of loss / parts; return loss and correct predictions."""
        with self._precision.autocast():
            loss, correct = self._model(x, y)
        self._precision.scaler.scale(loss / parts).backward()
        return loss.detach(), correct


class AveragedGradients(Gradients):
    """Gradients averaged by DistributedDataParallel; ``parts`` micro-batches per process."""

    def __init__(self, model: nn.Module, group: ProcessGroup, **options: Any) -> None:
        super().__init__(model, group, **options)
        self._model = group.wrap(model)

    def compute(
        self, inputs: Tensor, target: Tensor, *, stop: bool, seed: int = 0, step: int = 0
    ) -> ReducedStats:
        """Run forward and backward, and all-reduce the results."""
        found: list[tuple[Tensor, Tensor]] = []
        split = self._parts_of(inputs, target, parts=self._parts, seed=seed, step=step)
        for part, (x, y) in enumerate(split):
            is_last = part == self._parts - 1
            with nullcontext() if is_last else self._group.no_sync(self._model):
                found.append(self._backward(x, y, parts=self._parts))
        losses, corrects = zip(*found, strict=True)
        self.local_loss = torch.stack(losses).mean()
        correct = torch.stack(corrects).sum()
        vector = self._group.all_reduce_(
            _pack_stats(self.local_loss, correct, stop, self._statistics)
        )
        return _unpack_stats(vector, parts=self._group.size)


class CanonicalGradients(Gradients):
    """Gradients with the same bits for any number of processes that divides ``parts``."""

    def compute(
        self, inputs: Tensor, target: Tensor, *, stop: bool, seed: int = 0, step: int = 0
    ) -> ReducedStats:
        """Run forward and backward shard by shard, and sum in the order of shards."""
        mine = self._parts // self._group.size
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        before = self._statistics.read()
        gradients: list[Tensor] = []
        packed: list[Tensor] = []
        losses: list[Tensor] = []
        for x, y in self._parts_of(inputs, target, parts=mine, seed=seed, step=step):
            self._model.zero_grad(set_to_none=True)
            self._statistics.write(before)
            loss, correct = self._backward(x, y)
            losses.append(loss)
            gradients.append(torch.cat([_gradient(p).reshape(-1) for p in parameters]))
            packed.append(_pack_stats(loss, correct, stop, self._statistics))
        self._statistics.subtract_batches(mine - 1)
        self.local_loss = torch.stack(losses).mean()
        self._reduce(torch.stack(gradients), parameters)
        vector = _ordered_sum(self._group.all_gather(torch.stack(packed)).flatten(0, 1))
        return _unpack_stats(vector, parts=self._parts)

    def _reduce(self, gradients: Tensor, parameters: list[nn.Parameter]) -> None:
        """Replace every ``.grad`` by the mean over all shards, summed in their order."""
        chunks = [
            _ordered_sum(self._group.all_gather(chunk.contiguous()).flatten(0, 1))
            for chunk in gradients.split(_GATHER_CHUNK, dim=1)
        ]
        mean = torch.cat(chunks) / self._parts
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, values in zip(parameters, mean.split(sizes), strict=True):
            _gradient(parameter).copy_(values.view(parameter.shape))


def split_batch(
    inputs: Tensor, target: Tensor, parts: int, *, axis: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Split a batch into equal parts along the batch axis of its inputs."""
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
    for row in rows[1:]:  # torch.sum groups its terms depending on the shape
        total += row
    return total


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:  # the model did not use it
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


MAX_SKIPS = 3
"""Consecutive steps that ``on_nonfinite="skip"`` may skip."""
MAX_OVERFLOWS = 30
"""Consecutive float16 overflows after which the loss scale cannot shrink further."""


class StepResult(NamedTuple):
    """Result of one step as Python numbers, the same on every process."""

    loss: float
    """Mean loss over the global batch."""
    correct: float
    """Correct predictions in the global batch."""
    stop: float
    """Positive if any process has its stop flag set."""
    norm: float
    """Norm of the gradient."""
    statistics: float
    """Sum of the batch norm statistics, to check that they are finite."""


class TrainStep:
    """Computes and checks gradients and updates the weights, alike on every process.

    Loss, gradient norm and stop flag are read before the weights are updated, in the only device
    synchronisation per step. So weights, optimizer state and batch norm statistics stay finite, and
    all processes decide from the same numbers.
    """

    def __init__(
        self, state: TrainingState, gradients: Gradients, config: TrainConfig, group: ProcessGroup
    ) -> None:
        self._state = state
        self._gradients = gradients
        self._config = config
        self._group = group
        self._statistics = BatchNormStats(state.model)
        self._synced = self._statistics.read()

    def run(
        self, batch: Batch, *, lr: float, stop: bool, hooks: AbstractContextManager[None]
    ) -> StepResult:
        """Take one step.

        Args:
            batch: this process's part of the global batch, on its device.
            lr: learning rate of the step.
            stop: stop flag of this process.
            hooks: context manager around forward and backward.
        """
        state, config = self._state, self._config
        set_learning_rate(state.optimizer, lr)
        with hooks:
            reduced = self._gradients.compute(
                batch.x, batch.target, stop=stop, seed=config.seed, step=state.progress.step
            )
        state.precision.scaler.unscale_(state.optimizer)
        norm = get_total_norm([p.grad for p in state.model.parameters() if p.grad is not None])
        result = _read(reduced, norm)
        is_finite = math.isfinite(result.loss) and math.isfinite(result.statistics)
        if is_finite and math.isfinite(result.norm):
            if config.optim.clip_norm is not None:
                clip_grads_with_norm_(state.model.parameters(), config.optim.clip_norm, norm)
            self._apply(reduced)
        elif is_finite and state.precision.scaler.is_enabled():
            self._skip_overflow(reduced)
        else:
            self._reject(batch, result)
        state.optimizer.zero_grad(set_to_none=True)
        return result

    def _apply(self, reduced: ReducedStats) -> None:
        state = self._state
        self._statistics.write(reduced.statistics)
        self._synced = reduced.statistics
        state.precision.scaler.step(state.optimizer)
        state.precision.scaler.update()
        if state.average is not None:
            state.average.update_parameters(state.model)
        state.progress.skipped = 0

    def _skip_overflow(self, reduced: ReducedStats) -> None:
        """Keep the weights and let the loss scale shrink."""
        self._statistics.write(reduced.statistics)
        self._synced = reduced.statistics
        self._state.precision.scaler.update()
        self._count_skip(MAX_OVERFLOWS, "float16 overflowed in every step, whatever the loss scale")

    def _reject(self, batch: Batch, result: StepResult) -> None:
        """Restore the batch norm statistics; then skip the step, or raise."""
        self._statistics.write(self._synced)
        self._state.precision.scaler.update()
        message = (
            f"loss {result.loss:g}, gradient norm {result.norm:g} at step "
            f"{self._state.progress.step} (seed {self._config.seed}), {self._bad_samples(batch)}"
        )
        allowed = MAX_SKIPS if self._config.on_nonfinite == "skip" else 0
        self._count_skip(allowed, message)
        _log.error("skipped a step: %s", message)

    def _count_skip(self, allowed: int, message: str) -> None:
        self._state.progress.skipped += 1
        if self._state.progress.skipped > allowed:
            raise NonFiniteError(
                f"{message}; the weights are unchanged. Check these samples, lower the learning "
                f"rate, or find the layer with lbq.check_currents_finite"
            )

    def _bad_samples(self, batch: Batch) -> str:
        """List the samples of the processes whose own loss is not finite; a collective."""
        device = self._group.device
        losses = self._group.all_gather(self._gradients.local_loss.to(device)).tolist()
        samples = self._group.all_gather(batch.sample_ids.to(device)).tolist()
        found = [
            f"process {rank}, samples {', '.join(map(str, indices))}"
            for rank, (loss, indices) in enumerate(zip(losses, samples, strict=True))
            if not math.isfinite(loss)
        ]
        return "; ".join(found) or "although the loss of every process is finite"


def _read(reduced: ReducedStats, norm: Tensor) -> StepResult:
    """Copy the results to the host in one transfer."""
    total = reduced.statistics.sum()
    numbers = [reduced.loss, reduced.correct, reduced.stop, norm, total]
    return StepResult(*torch.stack(numbers).tolist())
