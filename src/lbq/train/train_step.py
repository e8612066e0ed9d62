"""Learning from one batch, and refusing to learn what is not finite."""

import logging
import math
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lbq.data import Batch
from lbq.errors import NonFiniteError
from lbq.train.batchnorm_stats import BatchNormStats
from lbq.train.distributed import ProcessGroup
from lbq.train.gradients import Gradients, ReducedStats
from lbq.train.optim import set_learning_rate
from lbq.train.recipe import Recipe
from lbq.train.state import TrainingState

_log = logging.getLogger(__name__)

MAX_SKIPS = 3
"""Steps in a row that ``on_nonfinite="skip"`` may skip."""
MAX_OVERFLOWS = 30
"""Steps in a row in which float16 may overflow: by then its scale has shrunk to nothing."""


class StepResult(NamedTuple):
    """What one step came to, in Python's numbers and alike on every process."""

    loss: float
    """Mean over the global batch."""
    correct: float
    """Right answers in the global batch."""
    stop: float
    """Positive if any process was asked to stop."""
    norm: float
    """Of the whole gradient."""
    statistics: float
    """Sum of the running statistics, to see that they are finite."""


class TrainStep:
    """Turns batches into better weights, on all processes alike.

    The device is waited for once per step: loss, gradient norm and wishes to stop are read
    together, before the weights are touched. So no weight, optimizer state or running statistic is
    ever written that is not finite, and all processes decide alike, from the same numbers.

    Args:
        state: what is trained.
        gradients: how the processes compute gradients together.
        recipe: what is asked for.
        group: the processes.
    """

    def __init__(
        self, state: TrainingState, gradients: Gradients, recipe: Recipe, group: ProcessGroup
    ) -> None:
        self._state = state
        self._gradients = gradients
        self._recipe = recipe
        self._group = group
        self._statistics = BatchNormStats(state.model)
        self._agreed = self._statistics.read()

    def run(
        self, batch: Batch, *, lr: float, stop: bool, watching: AbstractContextManager[None]
    ) -> StepResult:
        """Take one step.

        Args:
            batch: this process's slice of the global batch, on its device.
            lr: learning rate of the step.
            stop: whether this process was asked to stop.
            watching: entered around forward and backward.
        """
        state, recipe = self._state, self._recipe
        set_learning_rate(state.optimizer, lr)
        with watching:
            reduced = self._gradients.compute(batch.x, batch.target, stop=stop)
        state.precision.unscale_(state.optimizer)
        gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
        norm = get_total_norm(gradients)
        result = _read(reduced, norm)  # the one wait
        is_sound = math.isfinite(result.loss) and math.isfinite(result.statistics)
        if is_sound and math.isfinite(result.norm):
            if recipe.optim.clip_norm is not None:
                clip_grads_with_norm_(state.model.parameters(), recipe.optim.clip_norm, norm)
            self._apply(reduced)
        elif is_sound and state.precision.skips_overflows:
            self._skip_overflow(reduced)
        else:
            self._refuse(batch, result)
        state.optimizer.zero_grad(set_to_none=True)
        return result

    def _apply(self, reduced: ReducedStats) -> None:
        state = self._state
        self._statistics.write(reduced.statistics)
        self._agreed = reduced.statistics
        state.precision.step(state.optimizer)
        if state.average is not None:
            state.average.update_parameters(state.model)
        state.progress.skipped = 0

    def _skip_overflow(self, reduced: ReducedStats) -> None:
        """Leave the weights alone and let the loss scale shrink."""
        self._statistics.write(reduced.statistics)
        self._agreed = reduced.statistics
        self._state.precision.skip()
        self._count_skip(MAX_OVERFLOWS, "float16 overflowed in every step, however small its scale")

    def _refuse(self, batch: Batch, result: StepResult) -> None:
        """Undo what the forward did to the running statistics; then skip the step, or raise."""
        self._statistics.write(self._agreed)
        self._state.precision.skip()
        words = (
            f"loss {result.loss:g}, gradient norm {result.norm:g} at step "
            f"{self._state.progress.step} (seed {self._recipe.seed}), {self._culprits(batch)}"
        )
        allowed = MAX_SKIPS if self._recipe.on_nonfinite == "skip" else 0
        self._count_skip(allowed, words)
        _log.error("skipped a step: %s", words)

    def _count_skip(self, allowed: int, words: str) -> None:
        self._state.progress.skipped += 1
        if self._state.progress.skipped > allowed:
            raise NonFiniteError(
                f"{words}; the weights are untouched. Look at these samples, lower the learning "
                f"rate, or find the layer with lbq.check_currents_finite"
            )

    def _culprits(self, batch: Batch) -> str:
        """Name the samples of the processes whose own loss is not finite; a collective."""
        device = self._group.device
        losses = self._group.all_gather(self._gradients.local_loss.to(device)).tolist()
        samples = self._group.all_gather(batch.sample_ids.to(device)).tolist()
        found = [
            f"process {rank}, samples {', '.join(map(str, indices))}"
            for rank, (loss, indices) in enumerate(zip(losses, samples, strict=True))
            if not math.isfinite(loss)
        ]
        return "; ".join(found) or "though every process's own loss is finite"


def _read(reduced: ReducedStats, norm: Tensor) -> StepResult:
    """Read the numbers that decide, in one transfer."""
    total = reduced.statistics.sum()
    numbers = [reduced.loss, reduced.correct, reduced.stop, norm, total]
    return StepResult(*torch.stack(numbers).tolist())
