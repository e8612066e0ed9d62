"""The loop: steps, evaluations and checkpoints until the recipe is done or somebody says stop."""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from lbq.config_io import Document
from lbq.data import Data, steps_per_epoch, train_batches
from lbq.train.distributed import ProcessGroup
from lbq.train.evaluation import Evaluation, count_correct
from lbq.train.metrics import Callback
from lbq.train.optim import learning_rate_factor
from lbq.train.preemption import StopRequest
from lbq.train.prefetch import prefetch_to_device
from lbq.train.recipe import Recipe
from lbq.train.saving import Saver
from lbq.train.state import TrainingState
from lbq.train.train_metrics import TrainMetrics
from lbq.train.train_step import StepResult, TrainStep

Ending = Literal["finished", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One life of a run, from wherever its state is.

    On every process the same methods run in the same order; ``saver`` and ``tell`` do something on
    the first one only.
    """

    recipe: Recipe
    data: Data
    group: ProcessGroup
    state: TrainingState
    train_step: TrainStep
    stop: StopRequest
    tell: Callback
    saver: Saver | None
    metadata: Document
    """What every checkpoint says about the run."""
    num_workers: int = 0
    """Processes that prepare batches."""
    log_every: int = 50
    """Steps between two lines of the metrics log."""
    stop_at: int | None = None
    """Stop at this step as if asked to."""

    def run(self) -> Ending:
        """Train until the end, or until somebody says stop; either way the last step is saved."""
        progress, total = self.state.progress, self.recipe.epochs * self._epoch_steps
        while True:
            if self._is_evaluation_due() and not self._evaluate():
                break
            if progress.step >= total or not self._train_epoch():
                break
        if self.saver is not None:
            self.saver.save(self.state.checkpoint(self.metadata), must=True)
        is_finished = progress.step >= total and not self._is_evaluation_due()
        self.tell({"event": "finish" if is_finished else "stop", "step": progress.step})
        self.group.barrier()  # who leaves early is taken for dead
        return "finished" if is_finished else "stopped"

    @property
    def _epoch_steps(self) -> int:
        return steps_per_epoch(self.data, self.recipe.batch)

    def _train_epoch(self) -> bool:
        """Train to the end of the epoch; False if somebody said stop."""
        progress = self.state.progress
        epoch, start_step = divmod(progress.step, self._epoch_steps)
        metrics = TrainMetrics(self.recipe.batch)
        batches = train_batches(
            self.data,
            seed=self.recipe.seed,
            epoch=epoch,
            global_batch=self.recipe.batch,
            rank=self.group.rank,
            world_size=self.group.size,
            start_step=start_step,
            num_workers=self.num_workers,
        )
        device, channels_last = self.group.device, self.recipe.channels_last
        for batch in prefetch_to_device(batches, device, channels_last=channels_last):
            metrics.batch_ready()
            lr = self._learning_rate()
            watching = self._watching(metrics)
            result = self.train_step.run(batch, lr=lr, stop=bool(self.stop), watching=watching)
            progress.step += 1
            if math.isfinite(result.loss):
                metrics.update(loss=result.loss, correct=result.correct)
            self._report(metrics, result, lr)
            if result.stop > 0 or progress.step == self.stop_at:
                return False
            if self.saver is not None and self.saver.is_due(progress.step):
                self.saver.save(self.state.checkpoint(self.metadata))
        return True

    def _learning_rate(self) -> float:
        factor = learning_rate_factor(
            self.recipe.schedule,
            step=self.state.progress.step,
            steps_per_epoch=self._epoch_steps,
            epochs=self.recipe.epochs,
        )
        return self.recipe.optim.lr * factor

    def _is_report_due(self, step: int) -> bool:
        return step % self.log_every == 0

    def _watching(self, metrics: TrainMetrics) -> AbstractContextManager[None]:
        """Look at the levels in the steps that are reported; hooks would undo a compilation."""
        is_due = self._is_report_due(self.state.progress.step + 1)
        if is_due and self.group.is_first and not self.recipe.compile:
            return metrics.watching(self.state.model)
        return nullcontext()

    def _report(self, metrics: TrainMetrics, result: StepResult, lr: float) -> None:
        step = self.state.progress.step
        if not (math.isfinite(result.loss) and math.isfinite(result.norm)):
            self.tell(
                {"event": "skip", "step": step, "loss": result.loss, "grad_norm": result.norm}
            )
        if self._is_report_due(step):
            place = {"step": step, "epoch": step / self._epoch_steps, "lr": lr}
            self.tell({"event": "train", **place, **metrics.read(), "grad_norm": result.norm})

    def _is_evaluation_due(self) -> bool:
        step, done = self.state.progress.step, self.state.progress.evaluations
        if step == 0 or step % self._epoch_steps or (done and done[-1].step == step):
            return False
        epoch = step // self._epoch_steps
        return epoch >= self.recipe.epochs or epoch % self.recipe.evaluate_every == 0

    def _evaluate(self) -> bool:
        """Evaluate; False if somebody said stop meanwhile."""
        start, step, average = time.monotonic(), self.state.progress.step, self.state.average
        found = count_correct(
            self.state.model if average is None else average,
            self.data,
            self.group,
            precision=self.state.precision,
            batch=self.recipe.test_batch,
            num_workers=self.num_workers,
            channels_last=self.recipe.channels_last,
            should_stop=lambda: bool(self.stop),
        )
        if found is None:
            return False
        correct, count, loss = found
        epoch = step // self._epoch_steps
        evaluation = Evaluation(step=step, epoch=epoch, correct=correct, count=count, loss=loss)
        self.state.progress.evaluations.append(evaluation)
        best = self.state.progress.best
        assert best is not None  # there is one now
        self.tell(
            {
                "event": "evaluation",
                "step": step,
                "epoch": epoch,
                "accuracy": evaluation.accuracy,
                "correct": correct,
                "count": count,
                "loss": loss,
                "weights": "trained" if average is None else "averaged",
                "best_on_test_set": {"accuracy": best.accuracy, "epoch": best.epoch},
                "seconds": round(time.monotonic() - start, 3),
            }
        )
        return True
