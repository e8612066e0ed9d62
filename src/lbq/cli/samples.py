"""The samples of a run as lowered networks take them: normalised, or as raw bytes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Subset

from lbq.cli.progress import show_status, track_progress
from lbq.data import Data, DataConfig, eval_batches, open_data
from lbq.data.augment import normalize
from lbq.data.splits import evenly_spaced
from lbq.data.user_data import UserData
from lbq.errors import FormatError, ParameterError
from lbq.preprocessing import Pixels
from lbq.train.loss import Metric, batch_loss, correct_predictions
from lbq.train.recipe import Recipe, recipe_from_document
from lbq.train.recipe_file import load_recipe_file
from lbq.train.task import Task

LARGEST = 255
"""Event counts above it saturate if a network takes bytes."""
_TOLERANCE = 0.01
"""How far a byte may be from an integer after its normalisation was undone in float64."""

MISSING_PREPROCESSING = (
    "an integer network takes bytes, but the model does not store how they are normalised: set "
    "model.preprocessing = lbq.Pixels(mean=..., std=...) in recipe(), or None if it takes integer "
    "counts 0..255; --bits float needs neither"
)


Preprocessing = Pixels | EllipsisType | None
"""The normalisation behind the inputs of a network; None for integer counts, ... if unknown."""


@dataclass(frozen=True)
class SampleBatch:
    """Some samples, as the trained network takes them and as bytes, and their targets."""

    real: Tensor
    """``[B, C, H, W]`` normalised, frames ``[T, B, 2, H, W]``, or a user's inputs."""
    target: Tensor
    """``[B]``, or a user's targets."""
    read_raw: Callable[[], Tensor]

    @cached_property
    def raw(self) -> Tensor:
        """The same as ``real``, as uint8: pixels or counts."""
        return self.read_raw()


@dataclass(frozen=True, kw_only=True)
class Count:
    """Scores over some samples."""

    correct: int | None
    """Correct answers; None if a user's metrics do not count them."""
    count: int
    loss: float | None = None
    """Mean loss, if the user's recipe file gives one."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Means of the other metrics."""
    backend: str | None = None
    """Backend of a lowered network; None for other engines."""

    @property
    def accuracy(self) -> float:
        """Share of correct answers; NaN if they were not counted."""
        return float("nan") if self.correct is None else self.correct / self.count


def sample_batches(
    data: Data | UserData,
    *,
    split: Literal["train", "test"] = "test",
    limit: int | None = None,
    batch: int,
    preprocessing: Preprocessing = ...,
) -> Iterator[SampleBatch]:
    """Yield the samples of a split without augmentation, spread evenly over it if limited.

    Args:
        data: data of a recipe, or of a user.
        split: training samples of a user's data are augmented by the data set itself.
        limit: number of samples; all by default.
        batch: samples at once.
        preprocessing: normalisation of a user's data, to recover bytes; other data store it.
    """
    num_samples = data.num_train if split == "train" else data.num_test
    order = evenly_spaced(num_samples, limit)
    starts = range(0, len(order), batch)
    for start in track_progress(starts, total=len(starts), what=f"{split} batches of {batch}"):
        index = order[start : start + batch]
        if isinstance(data, UserData):
            yield _read_user_samples(data, split, index, preprocessing)
        else:
            yield _read_samples(data, split, index)


def _read_samples(
    data: Data, split: Literal["train", "test"], index: NDArray[np.int64]
) -> SampleBatch:
    chosen = data.splits.train if split == "train" else data.splits.test
    samples = chosen.read(index)
    if samples.ndim == 5:
        real = samples.astype(np.float32)
    else:
        real = normalize(samples, data.config.augment.normalization)
    raw = _time_first(np.minimum(samples, LARGEST).astype(np.uint8))
    return SampleBatch(_time_first(real), torch.from_numpy(chosen.labels[index]), lambda: raw)


def _read_user_samples(
    data: UserData,
    split: Literal["train", "test"],
    index: NDArray[np.int64],
    preprocessing: Preprocessing,
) -> SampleBatch:
    chosen = data.train if split == "train" else data.test
    assert chosen is not None
    part = UserData(data.train, Subset(chosen, index.tolist()), data.time_first)
    x, target, _ = next(iter(eval_batches(part, batch=len(index))))
    return SampleBatch(
        x, target, partial(recover_bytes, x, preprocessing, channel_axis=data.batch_axis + 1)
    )


def recover_bytes(real: Tensor, preprocessing: Preprocessing, *, channel_axis: int) -> Tensor:
    """Undo the normalisation of samples; raise ParameterError if the result is not uint8."""
    if isinstance(preprocessing, EllipsisType):
        raise ParameterError(MISSING_PREPROCESSING)
    exact = real.double()
    if preprocessing is not None:
        shape = (-1, *[1] * (real.dim() - channel_axis - 1))
        mean, std = (
            torch.tensor(values, dtype=torch.float64).reshape(shape)
            for values in (preprocessing.mean, preprocessing.std)
        )
        exact = (exact * std + mean) * LARGEST
    rounded = exact.round()
    if bool(((exact - rounded).abs() > _TOLERANCE).any()) or not (
        0 <= float(rounded.min()) <= float(rounded.max()) <= LARGEST
    ):
        raise ParameterError(
            f"the samples are not bytes 0..{LARGEST} with model.preprocessing = {preprocessing}, "
            f"but {float(exact.min()):.4g}..{float(exact.max()):.4g}; an integer network takes "
            f"bytes: set it to the mean and std that normalise the data"
        )
    return rounded.to(torch.uint8)


def preprocessing_of(model: nn.Module, data: Data | UserData) -> Preprocessing:
    """Return the normalisation of a user's network: ``model.preprocessing``."""
    if isinstance(data, Data):
        return data.config.preprocessing
    found = getattr(model, "preprocessing", ...)
    if found is not None and not isinstance(found, Pixels | EllipsisType):
        raise ParameterError(
            f"model.preprocessing must be an lbq.Pixels, or None for integer counts, got "
            f"{type(found).__name__}"
        )
    return found


def load_task(path: Path, *, needs_test: bool = False) -> Task:
    """Load the recipe file of ``--model`` for a run of :func:`lbq.fit`.

    Args:
        path: path of the file.
        needs_test: whether to raise if it has no ``eval_data``.
    """
    found = load_recipe_file(path)
    if isinstance(found, Recipe):
        raise ParameterError(
            f"recipe() in {path} returns an lbq.train.Recipe, which runs and files store: leave "
            f"out --model"
        )
    if needs_test and found.data.num_test == 0:
        raise ParameterError(f"recipe() in {path} returns no eval_data: there is nothing to test")
    return found


def count_answers(
    answer: Callable[[Tensor], Tensor],
    data: Data | UserData,
    *,
    is_integer: bool,
    batch: int,
    limit: int | None = None,
    task: Task | None = None,
    logit_scale: float | None = None,
) -> Count:
    """Count the correct answers on the test set, or on ``limit`` samples of it.

    Args:
        answer: the network.
        data: the test samples.
        is_integer: whether the network takes bytes.
        batch: samples at once.
        limit: number of samples.
        task: the user's recipe file; its loss and metrics are computed.
        logit_scale: value of one unit of an integer output, for loss and metrics.
    """
    metrics = {"accuracy": correct_predictions} if task is None else task.metrics
    preprocessing = ... if task is None else preprocessing_of(task.model, data)
    totals, loss, count = dict.fromkeys(metrics, 0.0), 0.0, 0
    batches = sample_batches(data, limit=limit, batch=batch, preprocessing=preprocessing)
    for samples in batches:
        output = answer(samples.raw if is_integer else samples.real)
        for name, value in score(output, samples.target, metrics, logit_scale).items():
            totals[name] += value
        if task is not None:
            loss += float(batch_loss(_real(output, logit_scale), samples.target, task.loss))
        count += len(samples.target)
    correct = round(totals.pop("accuracy")) if "accuracy" in totals else None
    return Count(
        correct=correct,
        count=count,
        loss=None if task is None else loss / count,
        metrics={name: value / count for name, value in totals.items()},
    )


def score(
    output: Tensor, target: Tensor, metrics: Mapping[str, Metric], logit_scale: float | None
) -> dict[str, float]:
    """Return the sum of every metric over a batch; correct answers are counted exactly."""
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        is_exact = metric is correct_predictions
        seen = output.double() if is_exact else _real(output, logit_scale)
        found[name] = float(metric(seen, target).sum(dtype=torch.float64))
    return found


def _real(output: Tensor, logit_scale: float | None) -> Tensor:
    return output if logit_scale is None else (output.double() * logit_scale).float()


def origin_recipe(origin: dict[str, Any], *, source: Path) -> Recipe:
    """Find the recipe in the origin that a file stores."""
    if "recipe" not in origin:
        raise FormatError(
            f"{source} does not store the recipe that trained it, so its test set is unknown; "
            f"write it with `lbq lower RUN` or `lbq export RUN`, or pass --inputs images.npy"
        )
    return recipe_from_document(origin["recipe"])


def open_samples(recipe: Recipe, *, source: str | None, cache: Path) -> Data:
    """Open the data of a recipe, or the same data from elsewhere."""
    config = recipe.data if source is None else replace(recipe.data, source=source)
    return open_config(config, cache=cache)


def open_config(config: DataConfig, *, cache: Path) -> Data:
    """Open data, and show that this takes a while."""
    with show_status(f"opening {config.source}"):
        return open_data(config, cache.expanduser())


def _time_first(samples: NDArray[Any]) -> Tensor:
    tensor = torch.from_numpy(samples)
    return tensor.transpose(0, 1).contiguous() if tensor.dim() == 5 else tensor
