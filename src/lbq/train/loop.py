"""The loop of a run: restore, train, evaluate, save."""

import logging
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from lbq.config_io import Document, canonical_json, parse_json
from lbq.cost.budget import CostBudget
from lbq.data import train_batches
from lbq.data.sampler import num_steps
from lbq.errors import NonFiniteError, RecipeError, RunError
from lbq.kernels.burst_packing import pack_bursts
from lbq.train.build import build_budget, build_gradients, build_state, calibrate
from lbq.train.checkpoint import Saver
from lbq.train.distributed import ProcessGroup
from lbq.train.evaluation import Evaluation, evaluate
from lbq.train.metrics import Callback, Record, TrainMetrics
from lbq.train.optim import (
    learning_rate_factor,
)
from lbq.train.prefetch import prefetch_to_device
from lbq.train.provenance import check_same_run, provenance
from lbq.train.run_folder import RunFolder
from lbq.train.supervisor import StopRequest
from lbq.train.task import Ending, Outcome, RunOptions, Task
from lbq.train.teacher import Teacher
from lbq.train.train_step import (
    StepResult,
    TrainStep,
)

_log = logging.getLogger(__name__)


@dataclass
class Attempt:
    """One attempt of a run: restore the state, then train until the end or a stop request.

    Every process runs the same methods in the same order; only the first one has a ``saver``, and
    ``log`` does nothing on the others.
    """

    task: Task
    folder: RunFolder
    options: RunOptions
    group: ProcessGroup
    stop: StopRequest
    log: Callback
    show: Callback | None
    """Called with progress that is not logged."""

    def __post_init__(self) -> None:
        task, group, options = self.task, self.group, self.options
        self.config, self.data = task.config, task.data
        self.epoch_steps = num_steps(self.data.num_train, self.config.batch)
        self.total_steps = self.config.epochs * self.epoch_steps
        self.teacher = None
        if task.teacher is not None:  # copied before a checkpoint changes the model: it may be both
            self.teacher = Teacher(
                task.teacher,
                self.config.teacher,
                device=group.device,
                channels_last=self.config.channels_last,
            )
        self.state = build_state(task.model, self.config, group)
        self.metadata: Document = {
            **task.metadata(),
            "world_size": group.size,
            **provenance(self.data.digest),
        }
        self.budget: CostBudget | None = None
        self.saver = None
        if group.is_first:
            every_s, every_steps = options.save_every_s, options.save_every_steps
            self.saver = Saver(
                self.folder.checkpoints, self.log, every_s=every_s, every_steps=every_steps
            )

    def run(self) -> Outcome:
        """Restore, train to the end or a stop, and say how it ended."""
        is_resumed = self._restore()
        if not is_resumed and self.config.calibrate is not None:
            calibrate(self.state.model, self.config, self.data, self.group)
        self.state.broadcast(self.group)
        if self._is_finished():
            self.state.model.eval()
            return self._outcome("already finished")
        if self.group.is_first:
            self.folder.write_settings(self.task.recipe or self.config)
        if self.group.is_first and self.task.recipe is None:
            _log_compared_by_name(self.task, self.metadata)
        self._log_start("resume" if is_resumed else "start")
        if self.saver is not None and not is_resumed and self.task.recipe is None:
            # a recipe builds the same weights again, a caller may not
            self.saver.save(self.state.checkpoint(self.metadata))
        self.state.model.train()
        try:
            ending = self._train()
        except NonFiniteError as error:
            last = max(self.folder.checkpoints.steps(), default=None)
            raise NonFiniteError(f"{error}. Last checkpoint: step {last}") from error
        return self._outcome(ending)

    def _restore(self) -> bool:
        """Restore the newest valid checkpoint, read by the first process; False without one."""
        text = None
        if self.group.is_first:
            self.folder.checkpoints.remove_partial()
            found = self.folder.checkpoints.load_newest(quarantine=True)
            if found is not None:
                allowed = self.options.allow_changed
                for change in check_same_run(found.metadata, self.metadata, allowed=allowed):
                    _log.warning("resuming although this changed: %s", change)
                self.state.restore(found)
                text = canonical_json(found.metadata)
        saved = self.group.broadcast_text(text)
        if not saved:
            return False
        self.state.restore_metadata(parse_json(saved, "the metadata of the checkpoint"))
        if self.state.progress.step > self.total_steps:
            raise RunError(
                f"the checkpoint is of step {self.state.progress.step}, but the recipe has only "
                f"{self.total_steps} steps; raise epochs, or choose another folder with --out"
            )
        return True

    def _log_start(self, event: Literal["start", "resume"]) -> None:
        self.log(
            {
                "event": event,
                "step": self.state.progress.step,
                "total_steps": self.total_steps,
                "steps_per_epoch": self.epoch_steps,
                **_names(self.task),
                "data_sha256": self.data.digest,
                "parameters": sum(p.numel() for p in self.state.model.parameters()),
                "processes": self.group.size,
                "device": str(self.group.device),
                "threads": torch.get_num_threads(),
                "precision": self.config.precision,
            }
        )

    def _outcome(self, ending: Ending) -> Outcome:
        step = self.state.progress.step
        was_signalled = ending == "stopped" and step != self.options.stop_at
        return Outcome(
            ending=ending,
            step=step,
            evaluations=tuple(self.state.progress.evaluations),
            exit_code=self.stop.exit_code if was_signalled else 0,
        )

    def _is_finished(self) -> bool:
        return self.state.progress.step >= self.total_steps and not self._is_evaluation_due()

    def _train(self) -> Ending:
        """Train until the end or a stop; either way the last step is saved."""
        if self.options.pack_bursts and self.config.compile:
            raise RecipeError(
                "pack_bursts cannot see the bursts inside a compiled model; leave one of them, "
                "compile or pack_bursts, at False"
            )
        self.budget = build_budget(self.state.model, self.config, self.data, self.group)
        gradients = build_gradients(
            self.config,
            self.state,
            self.group,
            loss=self.task.loss,
            accuracy=self.task.metrics.get("accuracy"),
            batch_axis=self.data.batch_axis,
            teacher=self.teacher,
            penalty=self.budget,
        )
        train_step = TrainStep(self.state, gradients, self.config, self.group)
        progress = self.state.progress
        while True:
            if self._is_evaluation_due() and not self._evaluate():
                break
            if progress.step >= self.total_steps or not self._train_epoch(train_step):
                break
        if self.saver is not None:
            self.saver.save(self.state.checkpoint(self.metadata), is_last=True)
        if self.budget is not None:
            self.budget.remove()
        self.state.model.eval()
        ending = "finished" if self._is_finished() else "stopped"
        event = "finish" if ending == "finished" else "stop"
        self.log({"event": event, "step": progress.step})
        self.group.barrier()  # without it, peers time out
        return ending

    def _train_epoch(self, train_step: TrainStep) -> bool:
        """Train to the end of the epoch; False after a stop request."""
        progress = self.state.progress
        epoch, start_step = divmod(progress.step, self.epoch_steps)
        metrics = TrainMetrics(self.config.batch, has_accuracy="accuracy" in self.task.metrics)
        batches = train_batches(
            self.data,
            seed=self.config.seed,
            epoch=epoch,
            global_batch=self.config.batch,
            rank=self.group.rank,
            world_size=self.group.size,
            start_step=start_step,
            num_workers=self.options.workers,
        )
        device, channels_last = self.group.device, self.config.channels_last
        for batch in prefetch_to_device(batches, device, channels_last=channels_last):
            metrics.batch_ready()
            factor = learning_rate_factor(
                self.config.schedule,
                step=progress.step,
                steps_per_epoch=self.epoch_steps,
                epochs=self.config.epochs,
            )
            lr = self.config.optim.lr * factor
            if self.budget is not None:
                self.budget.weight = self.config.cost.weight_at(progress.step / self.epoch_steps)
            hooks = self._level_hooks(metrics)
            with pack_bursts() if self.options.pack_bursts else nullcontext():
                result = train_step.run(batch, lr=lr, stop=bool(self.stop), hooks=hooks)
            progress.step += 1
            if math.isfinite(result.loss):
                metrics.update(loss=result.loss, correct=result.correct)
            self._log_step(metrics, result, lr)
            if self.show is not None:
                self.show({"event": "step", "step": progress.step, "loss": result.loss})
            if result.stop > 0 or progress.step == self.options.stop_at:
                return False
            if self.saver is not None and self.saver.is_due(progress.step):
                self.saver.save(self.state.checkpoint(self.metadata))
        return True

    def _level_hooks(self, metrics: TrainMetrics) -> AbstractContextManager[None]:
        """Count active neurons in the steps that are logged; hooks would break a compiled graph."""
        is_logged = (self.state.progress.step + 1) % self.options.log_every == 0
        if is_logged and self.group.is_first and not self.config.compile:
            return metrics.watch_activity(self.state.model)
        return nullcontext()

    def _log_step(self, metrics: TrainMetrics, result: StepResult, lr: float) -> None:
        step = self.state.progress.step
        if not (math.isfinite(result.loss) and math.isfinite(result.norm)):
            numbers = {"loss": result.loss, "grad_norm": result.norm}
            self.log({"event": "skip", "step": step, **numbers})
        if step % self.options.log_every == 0:
            position = {"step": step, "epoch": step / self.epoch_steps, "lr": lr}
            averages = metrics.compute_and_reset()
            if self.budget is not None:
                averages["cost_per_mac"] = self.budget.cost_per_mac
            self.log({"event": "train", **position, **averages, "grad_norm": result.norm})

    def _is_evaluation_due(self) -> bool:
        step, done = self.state.progress.step, self.state.progress.evaluations
        if (
            self.data.num_test == 0
            or step == 0
            or step % self.epoch_steps
            or (done and done[-1].step == step)
        ):
            return False
        epoch = step // self.epoch_steps
        return epoch >= self.config.epochs or epoch % self.config.evaluate_every == 0

    def _evaluate(self) -> bool:
        """Evaluate; False after a stop request."""
        start, step, average = time.monotonic(), self.state.progress.step, self.state.average
        show = self.show

        def report(done: int, total: int) -> None:
            if show is not None:
                show({"event": "evaluating", "step": step, "done": done, "total": total})

        found = evaluate(
            self.state.model if average is None else average,
            self.data,
            self.group,
            precision=self.state.precision,
            batch=self.config.test_batch,
            loss=self.task.loss,
            metrics=self.task.metrics,
            seed=self.config.seed,
            num_workers=self.options.workers,
            channels_last=self.config.channels_last,
            should_stop=lambda: bool(self.stop),
            progress=report,
        )
        if found is None:
            return False
        evaluation = Evaluation(step=step, epoch=step // self.epoch_steps, **asdict(found))
        self.state.progress.evaluations.append(evaluation)
        best = self.state.progress.best
        assert best is not None
        record: Record = {
            "event": "evaluation",
            "step": step,
            "epoch": evaluation.epoch,
            "count": evaluation.count,
            "loss": evaluation.loss,
            **evaluation.metrics,
            "weights": "trained" if average is None else "averaged",
            "seconds": round(time.monotonic() - start, 3),
        }
        if evaluation.correct is None:
            record["best_on_test_set"] = {"loss": best.loss, "epoch": best.epoch}
        else:
            record |= {"accuracy": evaluation.accuracy, "correct": evaluation.correct}
            record["best_on_test_set"] = {"accuracy": best.accuracy, "epoch": best.epoch}
        self.log(record)
        return True


def _log_compared_by_name(task: Task, metadata: Document) -> None:
    """Log which of the caller's functions a resumed run can only compare by name."""
    digests = {"loss": metadata["loss_code"]} if task.loss is not None else {}
    digests |= {f"metric {name!r}": found for name, found in metadata["metrics_code"].items()}
    hidden = [name for name, found in digests.items() if found is None]
    if hidden:
        _log.warning(
            "the %s has no Python code to compare when the run is resumed: only its name is "
            "compared",
            " and the ".join(hidden),
        )


def _names(task: Task) -> Record:
    """Name what is trained, for the log."""
    if task.recipe is not None:
        return {"recipe": task.recipe.name, "recipe_sha256": task.recipe.digest()}
    return {"model": type(task.model).__name__}
