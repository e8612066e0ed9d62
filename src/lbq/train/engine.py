"""Train a recipe in a folder, from the start or from its last checkpoint."""

import ctypes
import logging
import math
import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lbq.config_io import Document, canonical_json, parse_json, to_document
from lbq.data import Data, open_data, steps_per_epoch, train_batches
from lbq.errors import NonFiniteError, ParameterError, RunError
from lbq.models.resnet import SpikingResNet
from lbq.neurons.calibrate import calibrate_steps
from lbq.ranges import Range, check_ranges
from lbq.train.checkpoint import Saver, TrainingState
from lbq.train.distributed import ProcessGroup, is_first_process, open_process_group
from lbq.train.evaluation import Evaluation, count_correct
from lbq.train.loss import ModelWithLoss
from lbq.train.metrics import Callback, MetricsLog, Record, TrainMetrics
from lbq.train.model_config import build_network
from lbq.train.optim import Precision, build_optimizer, learning_rate_factor
from lbq.train.prefetch import prefetch_to_device, to_device
from lbq.train.provenance import check_same_run, provenance
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder
from lbq.train.supervisor import StopRequest, catch_stop_signals
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
    """Where and how fast a run computes; nothing here changes its results."""

    cache: str | Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    device: str = "auto"
    """ "auto" (a GPU if there is one), cpu, cuda or cuda:1."""
    workers: int = 0
    """Data loader processes per device; 0 loads in the main process."""
    threads: int | None = None
    """CPU threads per device; None for torch's default, in canonical mode 1."""
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


def train(
    recipe: Recipe,
    out: str | Path,
    options: RunOptions | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    wait_for_lock_s: float = 0.0,
) -> Outcome:
    """Train a recipe in a folder, resuming from its last checkpoint if there is one.

    Under torchrun every process calls this; only the first one writes, locks and logs.

    Args:
        recipe: what to compute.
        out: the folder of the run.
        options: where and how fast.
        callbacks: called with every record of the metrics log.
        wait_for_lock_s: how long to wait for another process to release the folder.
    """
    options = RunOptions() if options is None else options
    folder = RunFolder(out, keep=options.keep)
    is_first = is_first_process()
    with folder.locked(wait_s=wait_for_lock_s) if is_first else nullcontext():
        data = open_data(recipe.data, options.cache)
        with (
            catch_stop_signals() as stop,
            open_process_group(options.device, timeout_s=options.timeout_s) as group,
        ):
            sinks: list[Callback] = [MetricsLog(folder.metrics_log), *callbacks] if is_first else []

            def log(record: Record) -> None:
                for sink in sinks:
                    sink(record)

            recipe.check_world_size(group.size)
            with torch_settings(recipe, group.device, threads=options.threads):
                return _Attempt(recipe, folder, options, data, group, stop, log).run()


@dataclass
class _Attempt:
    """One attempt of a run: restore the state, then train until the end or a stop request.

    Every process runs the same methods in the same order; only the first one has a ``saver``, and
    ``log`` does nothing on the others.
    """

    recipe: Recipe
    folder: RunFolder
    options: RunOptions
    data: Data
    group: ProcessGroup
    stop: StopRequest
    log: Callback

    def __post_init__(self) -> None:
        recipe, data, group, options = self.recipe, self.data, self.group, self.options
        self.epoch_steps = steps_per_epoch(data, recipe.batch)
        self.total_steps = recipe.epochs * self.epoch_steps
        self.state = build_state(recipe, data, group)
        self.metadata: Document = {
            "recipe": to_document(recipe),
            "num_classes": data.num_classes,
            "world_size": group.size,
            **provenance(data.digest),
        }
        self.saver = None
        if group.is_first:
            every_s, every_steps = options.save_every_s, options.save_every_steps
            self.saver = Saver(
                self.folder.checkpoints, self.log, every_s=every_s, every_steps=every_steps
            )

    def run(self) -> Outcome:
        is_resumed = self._restore()
        if not is_resumed and self.recipe.calibrate is not None:
            calibrate(self.state.model, self.recipe, self.data, self.group)
        self.state.broadcast(self.group)
        if self._is_finished():
            return self._outcome("already finished")
        if self.group.is_first:
            self.folder.write_recipe(self.recipe)
        self._log_start("resume" if is_resumed else "start")
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
                "recipe": self.recipe.name,
                "recipe_sha256": self.recipe.digest(),
                "data_sha256": self.data.digest,
                "parameters": sum(p.numel() for p in self.state.model.parameters()),
                "processes": self.group.size,
                "device": str(self.group.device),
                "threads": torch.get_num_threads(),
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
        gradients = build_gradients(self.recipe, self.state, self.group)
        train_step = TrainStep(self.state, gradients, self.recipe, self.group)
        progress = self.state.progress
        while True:
            if self._is_evaluation_due() and not self._evaluate():
                break
            if progress.step >= self.total_steps or not self._train_epoch(train_step):
                break
        if self.saver is not None:
            self.saver.save(self.state.checkpoint(self.metadata), is_last=True)
        ending = "finished" if self._is_finished() else "stopped"
        event = "finish" if ending == "finished" else "stop"
        self.log({"event": event, "step": progress.step})
        self.group.barrier()  # without it, peers time out
        return ending

    def _train_epoch(self, train_step: TrainStep) -> bool:
        """Train to the end of the epoch; False after a stop request."""
        progress = self.state.progress
        epoch, start_step = divmod(progress.step, self.epoch_steps)
        metrics = TrainMetrics(self.recipe.batch)
        batches = train_batches(
            self.data,
            seed=self.recipe.seed,
            epoch=epoch,
            global_batch=self.recipe.batch,
            rank=self.group.rank,
            world_size=self.group.size,
            start_step=start_step,
            num_workers=self.options.workers,
        )
        device, channels_last = self.group.device, self.recipe.channels_last
        for batch in prefetch_to_device(batches, device, channels_last=channels_last):
            metrics.batch_ready()
            factor = learning_rate_factor(
                self.recipe.schedule,
                step=progress.step,
                steps_per_epoch=self.epoch_steps,
                epochs=self.recipe.epochs,
            )
            lr = self.recipe.optim.lr * factor
            hooks = self._level_hooks(metrics)
            result = train_step.run(batch, lr=lr, stop=bool(self.stop), hooks=hooks)
            progress.step += 1
            if math.isfinite(result.loss):
                metrics.update(loss=result.loss, correct=result.correct)
            self._log_step(metrics, result, lr)
            if result.stop > 0 or progress.step == self.options.stop_at:
                return False
            if self.saver is not None and self.saver.is_due(progress.step):
                self.saver.save(self.state.checkpoint(self.metadata))
        return True

    def _level_hooks(self, metrics: TrainMetrics) -> AbstractContextManager[None]:
        """Count active neurons in the steps that are logged; hooks would break a compiled graph."""
        is_logged = (self.state.progress.step + 1) % self.options.log_every == 0
        if is_logged and self.group.is_first and not self.recipe.compile:
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
            self.log({"event": "train", **position, **averages, "grad_norm": result.norm})

    def _is_evaluation_due(self) -> bool:
        step, done = self.state.progress.step, self.state.progress.evaluations
        if step == 0 or step % self.epoch_steps or (done and done[-1].step == step):
            return False
        epoch = step // self.epoch_steps
        return epoch >= self.recipe.epochs or epoch % self.recipe.evaluate_every == 0

    def _evaluate(self) -> bool:
        """Evaluate; False after a stop request."""
        start, step, average = time.monotonic(), self.state.progress.step, self.state.average
        found = count_correct(
            self.state.model if average is None else average,
            self.data,
            self.group,
            precision=self.state.precision,
            batch=self.recipe.test_batch,
            num_workers=self.options.workers,
            channels_last=self.recipe.channels_last,
            should_stop=lambda: bool(self.stop),
        )
        if found is None:
            return False
        correct, count, loss = found
        epoch = step // self.epoch_steps
        evaluation = Evaluation(step=step, epoch=epoch, correct=correct, count=count, loss=loss)
        self.state.progress.evaluations.append(evaluation)
        best = self.state.progress.best
        assert best is not None
        self.log(
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


def build_state(recipe: Recipe, data: Data, group: ProcessGroup) -> TrainingState:
    """Build model, optimizer and moving average from the seed; torch's generators do not change."""
    with torch.random.fork_rng([group.device] if group.device.type == "cuda" else []):
        torch.manual_seed(recipe.seed)
        model = build_network(recipe.model, num_classes=data.num_classes).to(group.device)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    average = None
    if recipe.ema_decay is not None:
        mean = get_ema_multi_avg_fn(recipe.ema_decay)
        average = AveragedModel(model, multi_avg_fn=mean, use_buffers=True)
    if recipe.compile:
        model.compile()
    return TrainingState(
        model=model,
        optimizer=build_optimizer(model, recipe.optim),
        precision=Precision(recipe.precision, group.device),
        average=average,
    )


def build_gradients(recipe: Recipe, state: TrainingState, group: ProcessGroup) -> Gradients:
    """Build the gradient computation that the recipe asks for."""
    model = ModelWithLoss(state.model, kind=recipe.loss, label_smoothing=recipe.label_smoothing)
    if recipe.deterministic == "canonical":
        return CanonicalGradients(model, group, precision=state.precision, parts=recipe.shards)
    return AveragedGradients(model, group, precision=state.precision, parts=recipe.accumulate)


def calibrate(model: SpikingResNet, recipe: Recipe, data: Data, group: ProcessGroup) -> None:
    """Set the steps from the first training samples, the same on every process."""
    assert recipe.calibrate is not None
    batches = train_batches(data, seed=recipe.seed, epoch=0, global_batch=recipe.batch)
    batch = next(iter(batches)).x
    axis = 1 if data.is_sequence else 0
    few = batch.narrow(axis, 0, min(_CALIBRATION_SAMPLES, batch.shape[axis]))
    inputs = to_device(few, group.device, channels_last=recipe.channels_last)
    statistics = BatchNormStats(model)
    before = statistics.read()
    calibrate_steps(model, [inputs], percentile=recipe.calibrate)
    statistics.write(before)
    statistics.subtract_batches(1)


@contextmanager
def torch_settings(
    recipe: Recipe, device: torch.device, *, threads: int | None = None
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
    is_canonical = recipe.deterministic == "canonical"
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
