"""Before the first step: torch, the state and the gradients as a recipe wants them."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lbq.data import Data, train_batches
from lbq.models.resnet import SpikingResNet
from lbq.neurons.calibrate import calibrate_steps
from lbq.train.allocator import keep_freed_memory
from lbq.train.batchnorm_stats import BatchNormStats
from lbq.train.distributed import ProcessGroup
from lbq.train.gradients import AveragedGradients, CanonicalGradients, Gradients
from lbq.train.loss import ModelWithLoss
from lbq.train.model_config import build_network
from lbq.train.optim import build_optimizer
from lbq.train.precision import Precision
from lbq.train.prefetch import to_device
from lbq.train.recipe import Recipe
from lbq.train.state import TrainingState

_CALIBRATION_SAMPLES = 256


_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def torch_settings(
    recipe: Recipe, device: torch.device, *, threads: int | None = None
) -> Generator[None]:
    """Set what torch keeps for the whole process inside the ``with`` block: threads, kernels.

    On the way out everything is as it was, but for glibc's memory (:func:`keep_freed_memory`).
    """
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get(_CUBLAS),
    )
    try:
        _set_torch(recipe, device, threads)
        yield
    finally:
        num_threads, is_deterministic, warn_only, benchmark, cublas = before
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if cublas is None:
            os.environ.pop(_CUBLAS, None)


def _set_torch(recipe: Recipe, device: torch.device, threads: int | None) -> None:
    is_canonical = recipe.deterministic == "canonical"
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cpu" and (threads is not None or is_canonical):
        torch.set_num_threads(1 if threads is None else threads)  # bits may depend on it
    if is_canonical:
        os.environ.setdefault(_CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(is_canonical)
    torch.backends.cudnn.benchmark = not is_canonical


def build_state(recipe: Recipe, data: Data, group: ProcessGroup) -> TrainingState:
    """Build everything that is trained, as the seed wants it.

    The state of torch's generators does not change.
    """
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
    """Build the way in which the processes compute gradients together."""
    model = ModelWithLoss(state.model, kind=recipe.loss, label_smoothing=recipe.label_smoothing)
    if recipe.deterministic == "canonical":
        return CanonicalGradients(model, group, precision=state.precision, shards=recipe.shards)
    return AveragedGradients(model, group, precision=state.precision, accumulate=recipe.accumulate)


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
