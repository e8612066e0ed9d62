"""Build the parts of a run from its settings: state, gradients, budget, kernels of torch."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lbq.cost.budget import CostBudget
from lbq.data import Data, train_batches
from lbq.data.user_data import UserData
from lbq.errors import RecipeError
from lbq.neurons.calibrate import calibrate_steps
from lbq.train.checkpoint import TrainingState
from lbq.train.distributed import ProcessGroup
from lbq.train.loss import Loss, Metric, ModelWithLoss, correct_predictions
from lbq.train.optim import (
    Precision,
    build_optimizer,
)
from lbq.train.prefetch import to_device
from lbq.train.teacher import Teacher
from lbq.train.train_config import TrainConfig
from lbq.train.train_step import (
    AveragedGradients,
    BatchNormStats,
    CanonicalGradients,
    Gradients,
)

_CALIBRATION_SAMPLES = 256
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


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

    All of them are restored afterwards.
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
        if device.type == "cpu" and (threads is not None or is_canonical):
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
