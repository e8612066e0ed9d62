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
from lbq.train.gradients import Gradients, Shared
from lbq.train.optim import set_learning_rate
from lbq.train.recipe import Recipe
from lbq.train.running import RunningStatistics
from lbq.train.state import TrainingState
from lbq.train.world import World

_log = logging.getLogger(__name__)

SKIPS = 3
"""Steps in a row that ``on_nonfinite="skip"`` may skip."""
OVERFLOWS = 30
"""Steps in a row in which float16 may overflow: by then its scale has shrunk to nothing."""


class Verdict(NamedTuple):
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


class Learner:
    """Turns batches into better weights, on all processes alike.

    The device is waited for once per step: loss, gradient norm and wishes to stop are read
    together, before the weights are touched. So no weight, optimizer state or running statistic is
    ever written that is not finite, and all processes decide alike, from the same numbers.

    Args:
        state: what is trained.
        gradients: how the processes compute gradients together.
        recipe: what is asked for.
        world: the processes.
    """

    def __init__(
        self, state: TrainingState, gradients: Gradients, recipe: Recipe, world: World
    ) -> None:
        self._state = state
        self._gradients = gradients
        self._recipe = recipe
        self._world = world
        self._statistics = RunningStatistics(state.model)
        self._agreed = self._statistics.read()

    def learn(
        self, batch: Batch, *, lr: float, stop: bool, watching: AbstractContextManager[None]
    ) -> Verdict:
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
            shared = self._gradients.compute(batch.x, batch.target, stop=stop)
        state.precision.unscale_(state.optimizer)
        gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
        norm = get_total_norm(gradients)
        verdict = _read(shared, norm)  # the one wait
        is_sound = math.isfinite(verdict.loss) and math.isfinite(verdict.statistics)
        if is_sound and math.isfinite(verdict.norm):
            if recipe.optim.clip_norm is not None:
                clip_grads_with_norm_(state.model.parameters(), recipe.optim.clip_norm, norm)
            self._apply(shared)
        elif is_sound and state.precision.skips_overflows:
            self._skip_overflow(shared)
        else:
            self._refuse(batch, verdict)
        state.optimizer.zero_grad(set_to_none=True)
        return verdict

    def _apply(self, shared: Shared) -> None:
        state = self._state
        self._statistics.write(shared.statistics)
        self._agreed = shared.statistics
        state.precision.step(state.optimizer)
        if state.average is not None:
            state.average.update_parameters(state.model)
        state.progress.skipped = 0

    def _skip_overflow(self, shared: Shared) -> None:
        """Leave the weights alone and let the loss scale shrink."""
        self._statistics.write(shared.statistics)
        self._agreed = shared.statistics
        self._state.precision.skip()
        self._count_skip(OVERFLOWS, "float16 overflowed in every step, however small its scale")

    def _refuse(self, batch: Batch, verdict: Verdict) -> None:
        """Undo what the forward did to the running statistics; then skip the step, or raise."""
        self._statistics.write(self._agreed)
        self._state.precision.skip()
        words = (
            f"loss {verdict.loss:g}, gradient norm {verdict.norm:g} at step "
            f"{self._state.progress.step} (seed {self._recipe.seed}), {self._culprits(batch)}"
        )
        allowed = SKIPS if self._recipe.on_nonfinite == "skip" else 0
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
        device = self._world.device
        losses = self._world.gather(self._gradients.local_loss.to(device)).tolist()
        samples = self._world.gather(batch.sample_ids.to(device)).tolist()
        found = [
            f"process {rank}, samples {', '.join(map(str, indices))}"
            for rank, (loss, indices) in enumerate(zip(losses, samples, strict=True))
            if not math.isfinite(loss)
        ]
        return "; ".join(found) or "though every process's own loss is finite"


def _read(shared: Shared, norm: Tensor) -> Verdict:
    """Read the numbers that decide, in one transfer."""
    total = shared.statistics.sum()
    numbers = [shared.loss, shared.correct, shared.stop, norm, total]
    return Verdict(*torch.stack(numbers).tolist())
