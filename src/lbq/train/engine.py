"""Train a model or a recipe in a folder, from the start or from its last checkpoint."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lbq.errors import ParameterError
from lbq.train.build import torch_settings
from lbq.train.distributed import ProcessGroup, is_first_process, open_process_group
from lbq.train.loop import Attempt
from lbq.train.loss import Loss, Metric, check_metrics
from lbq.train.metrics import Callback, MetricsLog, Record
from lbq.train.optim import (
    PrecisionKind,
    fastest_precision,
)
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder
from lbq.train.supervisor import catch_stop_signals
from lbq.train.task import Outcome, RunOptions, Task, join_data
from lbq.train.train_config import TrainConfig

_log = logging.getLogger(__name__)


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
    """Train any model on any map-style data; resume from the last checkpoint in ``out``.

    The model is trained in place, from its current weights, and left in eval mode. Called again
    with the same arguments, after a kill at any moment, the run continues with the same bits: the
    random numbers that ``Dataset`` and model draw from the global generators of torch, numpy and
    ``random`` depend only on the seed and the place in the run. Under torchrun every process calls
    this.

    Args:
        model: maps a batch of inputs to logits ``[B, classes]`` or ``[T, B, classes]``, or to
            anything that ``loss`` accepts.
        train_data: training samples: a map-style data set of (input, target), of torch or Hugging
            Face; a tuple of two arrays or tensors; or an :class:`lbq.data.dataset.Data`.
        eval_data: samples to evaluate on; None for no evaluations. If ``train_data`` is an
            :class:`lbq.data.dataset.Data`, the same object.
        config: epochs, batch, optimizer and so on.
        out: the folder of the run.
        loss: ``loss(output, target)``, the mean over the batch; cross-entropy by default.
        metrics: by name, ``metric(output, target)``, one number per sample; their means are logged
            at every evaluation. Accuracy by default, nothing if ``loss`` is given.
        teacher: a trained network whose answers to the same inputs enter the loss as
            ``config.teacher`` says; both return logits. It is copied, not changed.
        callbacks: called with every record of the metrics log.
        options: where and how fast; none of them changes the result.
        time_first: whether the first axis of a sample is time; batches are then ``[T, B, ...]``.

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
    """Train a recipe: build its network and data, and :func:`fit` them.

    The folder stores the recipe.

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


def run_task(
    build: Callable[[], Task],
    out: str | Path,
    options: RunOptions | None,
    *,
    callbacks: Sequence[Callback],
    progress: Callback | None = None,
    wait_for_lock_s: float = 0.0,
) -> Outcome:
    """Run a task in a folder; build it once the folder is locked. See :func:`train`."""
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
                return Attempt(task, folder, options, group, stop, log, show).run()


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
            "precision bf16 is slower than fp32 on this %s, which has no units for it; for new "
            "runs use --precision auto or fp32",
            "processor" if group.device.type == "cpu" else "device",
        )
    recipe = None if task.recipe is None else replace(task.recipe, precision=kind)
    return replace(task, config=replace(task.config, precision=kind), recipe=recipe)


def _check_model(model: nn.Module) -> None:
    """Raise unless the model has parameters to train, all of them with a shape."""
    parameters = list(model.parameters())
    if any(is_lazy(parameter) for parameter in parameters):
        raise ParameterError(
            "the model has lazy layers whose parameters have no shape yet; run it once on a batch"
        )
    if not any(parameter.requires_grad for parameter in parameters):
        raise ParameterError("the model has no parameters to train")
