"""The samples of a recipe as lowered networks take them: normalised, or as raw bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lbq.cli.progress import show_status, track_progress
from lbq.data import Data, DataConfig, open_data
from lbq.data.augment import normalize
from lbq.data.splits import evenly_spaced
from lbq.errors import FormatError
from lbq.train.recipe import Recipe, recipe_from_document

LARGEST = 255
"""Event counts above it saturate where a network takes bytes."""


class SampleBatch(NamedTuple):
    """Some samples, twice, and their classes."""

    real: Tensor
    """``[B, C, H, W]`` normalised, or frames ``[T, B, 2, H, W]``; float32."""
    raw: Tensor
    """The same as uint8: pixels or counts."""
    target: Tensor
    """``[B]``."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """Right answers, of how many."""

    correct: int
    count: int
    backend: str | None = None
    """That ran a lowered network; None where another engine ran."""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.count


def sample_batches(
    data: Data, *, split: Literal["train", "test"] = "test", limit: int | None = None, batch: int
) -> Iterator[SampleBatch]:
    """Yield the samples of a split as they are, spread evenly over it if they are limited."""
    chosen = data.splits.train if split == "train" else data.splits.test
    order = evenly_spaced(len(chosen.labels), limit)
    starts = range(0, len(order), batch)
    for start in track_progress(starts, total=len(starts), what=f"{split} batches of {batch}"):
        index = order[start : start + batch]
        samples = chosen.read(index)
        if samples.ndim == 5:
            real = samples.astype(np.float32)
        else:
            real = normalize(samples, data.config.augment.normalization)
        raw = np.minimum(samples, LARGEST).astype(np.uint8)
        target = torch.from_numpy(chosen.labels[index])
        yield SampleBatch(_time_first(real), _time_first(raw), target)


def count_answers(
    answer: Callable[[Tensor], Tensor],
    data: Data,
    *,
    is_integer: bool,
    batch: int,
    limit: int | None = None,
) -> Count:
    """Count the right answers over the test set, or over ``limit`` samples of it."""
    correct = count = 0
    for batch_ in sample_batches(data, limit=limit, batch=batch):
        logits = answer(batch_.raw if is_integer else batch_.real)
        correct += int((logits.argmax(1) == batch_.target).sum())
        count += len(batch_.target)
    return Count(correct=correct, count=count)


def origin_recipe(origin: dict[str, Any], *, source: Path) -> Recipe:
    """Find the recipe in what a file says about its origin."""
    if "recipe" not in origin:
        raise FormatError(
            f"{source} does not say by which recipe it was trained, so its test set is unknown; "
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
