"""Train a model or a recipe in a folder, from the start or from its last checkpoint."""

import ctypes
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lbq.config_io import Document, canonical_json, parse_json, to_document
from lbq.cost.budget import CostBudget
from lbq.data import Data, train_batches
from lbq.data.sampler import num_steps
from lbq.data.user_data import UserData, as_dataset
from lbq.errors import NonFiniteError, ParameterError, RecipeError, RunError
from lbq.kernels.burst_packing import pack_bursts
from lbq.neurons.calibrate import calibrate_steps
from lbq.ranges import Range, check_ranges
from lbq.train.callable_digest import callable_digest
from lbq.train.checkpoint import Saver, TrainingState
from lbq.train.distributed import ProcessGroup, is_first_process, open_process_group
from lbq.train.evaluation import Evaluation, evaluate
from lbq.train.loss import Loss, Metric, ModelWithLoss, check_metrics, correct_predictions
from lbq.train.metrics import Callback, MetricsLog, Record, TrainMetrics
from lbq.train.optim import (
    Precision,
    PrecisionKind,
    build_optimizer,
    fastest_precision,
    learning_rate_factor,
)
from lbq.train.prefetch import prefetch_to_device, to_device
from lbq.train.provenance import check_same_run, provenance, structure_digest
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder
from lbq.train.supervisor import StopRequest, catch_stop_signals
from lbq.train.teacher import Teacher, teacher_digest
from lbq.train.train_config import TrainConfig
from lbq.train.train_step import (
    AveragedGradients,
    BatchNormStats,
    CanonicalGradients,
    Gradients,
    StepResult,
    TrainStep,
)

_log = logging.getLogger(__name__)

Ending = Literal["finished", "stopped", "already finished"]

_CALIBRATION_SAMPLES = 256
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how fast a run computes; nothing here changes its results.

    Example:
        >>> lbq.RunOptions(workers=4, save_every_s=60).keep
        2
    """

    cache: str | Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    device: str = "auto"
    """ "auto" (a GPU if there is one), cpu, cuda or cuda:1."""
    workers: int = 0
    """Data loader processes per device; 0 loads in the main process."""
    threads: int | None = None
    """CPU threads per device; None for torch's default, in canonical mode 1."""
    pack_bursts: bool = False
    """Keep bursts for the backward pass as packed levels (:func:`lbq.pack_bursts`): less memory."""
    log_every: int = 50
    """Steps between two lines of the metrics log."""
    save_every_s: float = 300.0
    """Seconds between two checkpoints."""
    save_every_steps: int | None = None
    """Steps between two checkpoints, in addition to ``save_every_s``."""
    keep: int = 2
    """Number of checkpoints to keep, at least 2."""
    timeout_s: float = 300.0
    """Timeout of collectives."""
    allow_changed: tuple[str, ...] = ()
    """Keys that may differ from the run that is resumed: recipe.epochs, code, data, ..."""
    stop_at: int | None = None
    """Stop, with a checkpoint, at this step."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_ranges(
            self,
            ParameterError,
            workers=Range(0),
            threads=Range(1),
            log_every=Range(1),
            save_every_s=Range(0),
            save_every_steps=Range(1),
            timeout_s=Range(0, 10**8, is_open_below=True),
            stop_at=Range(1),
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt of a run ended."""

    ending: Ending
    """ "already finished" if there was nothing left to do."""
    step: int
    """Steps done in all attempts."""
    evaluations: tuple[Evaluation, ...]
    """Evaluations of all attempts, oldest first."""
    exit_code: int
    """0, or 128 + the signal that stopped this attempt."""


def fit(
    model: nn.Module,
    train_data: Any,
    eval_data: Any,
    config: TrainConfig,
    out: str | Path,
    *,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
    teacher: nn.Module | None = None,
    callbacks: Sequence[Callback] = (),
    options: RunOptions | None = None,
    time_first: bool = False,
) -> Outcome:
    """Train any model on any map-style data, resuming from the last checkpoint in ``out``.

    The model is trained in place, from the weights that it has, and left in eval mode. Called again
    with the same arguments, after a kill at any moment, the run continues with the same bits: what
    ``Dataset`` and model draw from the global generators of torch, numpy and ``random`` depends
    only on the seed and the place in the run. Under torchrun every process calls this.

    Args:
        model: maps a batch of inputs to logits ``[B, classes]`` or ``[T, B, classes]``, or to
            anything that ``loss`` accepts.
        train_data: training samples: a map-style data set of (input, target), of torch or Hugging
            Face; a tuple of two arrays or tensors; or an :class:`lbq.data.dataset.Data`.
        eval_data: samples to evaluate on; None for no evaluations, and for an
            :class:`lbq.data.dataset.Data` the same object.
        config: epochs, batch, optimizer and so on.
        out: the folder of the run.
        loss: ``loss(output, target)``, the mean over the batch; cross-entropy by default.
        metrics: by name, ``metric(output, target)``, one number per sample; their means are logged
            at every evaluation. Accuracy by default, nothing if ``loss`` is given.
        teacher: a trained network, whose answers to the same inputs enter the loss as
            ``config.teacher`` says; both return logits. It is copied, not changed.
        callbacks: called with every record of the metrics log.
        options: where and how fast; nothing in it changes the result.
        time_first: whether a sample has a time axis, first; batches are then ``[T, B, ...]``.

    Example:
        >>> images, classes = torch.randn(64, 8), torch.arange(64) % 2
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 16),
        ...     lbq.RepeatOverTime(2),
        ...     lbq.BurstLIF(),
        ...     torch.nn.Linear(16, 2),
        ... )
        >>> config = lbq.TrainConfig(epochs=2, batch=16)
        >>> data = images, classes
        >>> run = lbq.fit(model, data, data, config, "runs/mine")
        >>> run.ending, run.step, run.evaluations[-1].count
        ('finished', 8, 64)
    """

    def build() -> Task:
        data = join_data(train_data, eval_data, time_first=time_first)
        return Task(model, data, config, loss, check_metrics(metrics, loss), teacher=teacher)

    return run_task(build, out, options, callbacks=callbacks)


def train(
    recipe: Recipe,
    out: str | Path,
    options: RunOptions | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    progress: Callback | None = None,
    wait_for_lock_s: float = 0.0,
) -> Outcome:
    """Build what a recipe describes and :func:`fit` it, with the recipe stored in the folder.

    Args:
        recipe: what to compute.
        out: the folder of the run.
        options: where and how fast.
        callbacks: called with every record of the metrics log.
        progress: called after every step (event "step", with its loss) and after every batch of an
            evaluation (event "evaluating", with ``done`` and ``total`` samples). Nothing logs them.
        wait_for_lock_s: how long to wait for another process to release the folder.
    """

    def build() -> Task:
        model, data, config = recipe.build((options or RunOptions()).cache)
        return Task(model, data, config, None, check_metrics(None, None), recipe)

    return run_task(
        build,
        out,
        options,
        callbacks=callbacks,
        progress=progress,
        wait_for_lock_s=wait_for_lock_s,
    )


@dataclass(frozen=True)
class Task:
    """What one attempt of a run computes."""

    model: nn.Module
    data: Data | UserData
    config: TrainConfig
    loss: Loss | None
    metrics: dict[str, Metric]
    recipe: Recipe | None = None
    """The recipe that built the other fields, if one did."""
    teacher: nn.Module | None = None
    """Whose answers enter the loss."""

    def metadata(self) -> Document:
        """Describe what must not change when a run is resumed."""
        if self.recipe is not None:
            assert isinstance(self.data, Data)
            return {"recipe": to_document(self.recipe), "num_classes": self.data.num_classes}
        return {
            "config": to_document(self.config),
            "structure": structure_digest(self.model),
            "loss": None if self.loss is None else _name_of(self.loss),
            "loss_code": None if self.loss is None else callable_digest(self.loss),
            "metrics": sorted(self.metrics),
            "metrics_code": {
                name: callable_digest(metric) for name, metric in sorted(self.metrics.items())
            },
            "teacher": None if self.teacher is None else teacher_digest(self.teacher),
        }


def _check_model(model: nn.Module) -> None:
    """Raise unless the model has parameters to train, all of them with a shape."""
    parameters = list(model.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        raise ParameterError(
            "the model has lazy layers whose parameters have no shape yet; run it once on a batch"
        )
    if not any(parameter.requires_grad for parameter in parameters):
        raise ParameterError("the model has no parameters to train")


def _log_compared_by_name(task: Task, metadata: Document) -> None:
    """Say which of the caller's functions a resumed run can only compare by name."""
    digests = {"loss": metadata["loss_code"]} if task.loss is not None else {}
    digests |= {f"metric {name!r}": found for name, found in metadata["metrics_code"].items()}
    hidden = [name for name, found in digests.items() if found is None]
    if hidden:
        _log.warning(
            "the %s has no Python code to compare when the run is resumed: only its name is "
            "compared",
            " and the ".join(hidden),
        )


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def join_data(train_data: Any, eval_data: Any, *, time_first: bool) -> Data | UserData:
    """Return both parts of the data as one object; raise if they are no data."""
    if isinstance(train_data, Data) or isinstance(eval_data, Data):
        if train_data is not eval_data or time_first:
            raise ParameterError(
                "an lbq.data.Data holds both training and test samples, time first if they have "
                "time: pass the same object as train_data and eval_data, and leave out time_first"
            )
        return train_data
    test = None if eval_data is None else as_dataset(eval_data, "eval_data")
    return UserData(as_dataset(train_data, "train_data"), test, time_first)


def run_task(
    build: Callable[[], Task],
    out: str | Path,
    options: RunOptions | None,
    *,
    callbacks: Sequence[Callback],
    progress: Callback | None = None,
    wait_for_lock_s: float = 0.0,
) -> Outcome:
    """Run a task in a folder; it is built when the folder is locked. See :func:`train`."""
    options = RunOptions() if options is None else options
    folder = RunFolder(out, keep=options.keep)
    is_first = is_first_process()
    with folder.locked(wait_s=wait_for_lock_s) if is_first else nullcontext():
        task = build()
        _check_model(task.model)
        with (
            catch_stop_signals() as stop,
            open_process_group(options.device, timeout_s=options.timeout_s) as group,
            torch.random.fork_rng([group.device] if group.device.type == "cuda" else []),
        ):
            sinks: list[Callback] = [MetricsLog(folder.metrics_log), *callbacks] if is_first else []

            def log(record: Record) -> None:
                for sink in sinks:
                    sink(record)

            task.config.check_world_size(group.size)
            task = _with_precision(task, folder, group)
            with torch_settings(task.config, group.device, threads=options.threads):
                show = progress if is_first else None
                return _Attempt(task, folder, options, group, stop, log, show).run()


def _with_precision(task: Task, folder: RunFolder, group: ProcessGroup) -> Task:
    """Replace precision "auto" by that of the run in the folder, or else by the fastest.

    The first process decides for all; another host may have other units.
    """
    kind = task.config.precision
    if kind == "auto":
        found = folder.precision() or fastest_precision(group.device) if group.is_first else None
        kind = cast(PrecisionKind, group.broadcast_text(found))
    if kind == "bf16" and group.is_first and fastest_precision(group.device) != "bf16":
        _log.warning(
            "precision bf16 is slower than fp32 on this %s, which has no units for it; new runs "
            "can take --precision auto or fp32",
            "processor" if group.device.type == "cpu" else "device",
        )
    recipe = None if task.recipe is None else replace(task.recipe, precision=kind)
    return replace(task, config=replace(task.config, precision=kind), recipe=recipe)


@dataclass
class _Attempt:
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


def _names(task: Task) -> Record:
    """Name what is trained, for the log."""
    if task.recipe is not None:
        return {"recipe": task.recipe.name, "recipe_sha256": task.recipe.digest()}
    return {"model": type(task.model).__name__}


def build_state(model: nn.Module, config: TrainConfig, group: ProcessGroup) -> TrainingState:
    """Move the model to its device; build optimizer and moving average."""
    model = model.to(group.device)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    average = None
    if config.ema_decay is not None:
        mean = get_ema_multi_avg_fn(config.ema_decay)
        average = AveragedModel(model, multi_avg_fn=mean, use_buffers=True)
    if config.compile:
        model.compile()
    return TrainingState(
        model=model,
        optimizer=build_optimizer(model, config.optim),
        precision=Precision(config.precision, group.device),
        average=average,
    )


def build_gradients(
    config: TrainConfig,
    state: TrainingState,
    group: ProcessGroup,
    *,
    loss: Loss | None = None,
    accuracy: Metric | None = correct_predictions,
    batch_axis: int = 0,
    teacher: Teacher | None = None,
    penalty: Callable[[], Tensor] | None = None,
) -> Gradients:
    """Build the gradient computation that the settings ask for."""
    model = ModelWithLoss(
        state.model,
        kind=config.loss,
        label_smoothing=config.label_smoothing,
        loss=loss,
        accuracy=accuracy,
        teach=None if teacher is None else teacher.join,
        penalty=penalty,
    )
    is_canonical = config.deterministic == "canonical"
    kind = CanonicalGradients if is_canonical else AveragedGradients
    parts = config.shards if is_canonical else config.accumulate
    return kind(model, group, precision=state.precision, parts=parts, batch_axis=batch_axis)


def build_budget(
    model: nn.Module, config: TrainConfig, data: Data | UserData, group: ProcessGroup
) -> CostBudget | None:
    """Watch the cost of the model, if the settings limit it."""
    if config.budget is None:
        return None
    if config.compile:
        raise RecipeError("a budget watches neurons, which a compiled model hides; compile=False")
    batches = train_batches(data, seed=config.seed, epoch=0, global_batch=config.batch)
    sample = next(iter(batches)).x.narrow(data.batch_axis, 0, 1)
    return CostBudget(
        model,
        to_device(sample, group.device, channels_last=False),
        table=config.cost.table,
        budget=config.budget,
        floor=config.cost.floor,
        batch_axis=data.batch_axis,
    )


def calibrate(
    model: nn.Module, config: TrainConfig, data: Data | UserData, group: ProcessGroup
) -> None:
    """Set the steps from the first training samples, the same on every process."""
    assert config.calibrate is not None
    batches = train_batches(data, seed=config.seed, epoch=0, global_batch=config.batch)
    batch = next(iter(batches)).x
    few = batch.narrow(data.batch_axis, 0, min(_CALIBRATION_SAMPLES, batch.shape[data.batch_axis]))
    inputs = to_device(few, group.device, channels_last=config.channels_last)
    statistics = BatchNormStats(model)
    before = statistics.read()
    calibrate_steps(model, [inputs], percentile=config.calibrate)
    statistics.write(before)
    statistics.subtract_batches(1)


@contextmanager
def torch_settings(
    config: TrainConfig, device: torch.device, *, threads: int | None = None
) -> Generator[None]:
    """Set torch's process-wide threads and kernels inside the ``with`` block.

    All of them are restored afterwards, except glibc's allocator (:func:`keep_freed_memory`).
    """
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get(_CUBLAS),
    )
    is_canonical = config.deterministic == "canonical"
    try:
        if device.type == "cpu":
            keep_freed_memory()
            if threads is not None or is_canonical:
                torch.set_num_threads(threads or 1)  # bits may depend on it
        if is_canonical:
            os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.use_deterministic_algorithms(is_canonical)
        torch.backends.cudnn.benchmark = not is_canonical
        yield
    finally:
        num_threads, is_deterministic, warn_only, benchmark, cublas = before
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if cublas is None:
            os.environ.pop(_CUBLAS, None)


def keep_freed_memory() -> bool:
    """Let glibc keep large freed blocks for the next step; False where there is no glibc.

    By default every large tensor of every step is a fresh mapping whose pages are cleared: a fifth
    of a small network's step (docs/log.md). The process keeps the size of its largest step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
    return bool(mallopt(m_mmap_threshold, 2**30) and mallopt(m_trim_threshold, 2**31 - 1))
