"""One batch: read, vary, mix; a pure function of the data, the seed and the step."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lbq.data.augment import (
    AugmentConfig,
    Floats,
    augment_images,
    choose_mix,
    mix_pairs,
    normalize,
    soft_targets,
)
from lbq.data.dataset import Data, steps_per_epoch
from lbq.data.encoded_images import CROP_DRAWS, DecodedOnRead
from lbq.data.event_augment import augment_clips
from lbq.data.sampler import RandomStream, epoch_order, eval_positions, random_bits, rank_positions
from lbq.data.splits import Split
from lbq.data.workers import TIMEOUT, map_in_order
from lbq.errors import CorruptSample, ParameterError


class Batch(NamedTuple):
    """What a network is given at once."""

    x: Tensor
    """Images ``[B, C, H, W]``, or frames of events ``[T, B, 2, H, W]``; float32."""
    target: Tensor
    """Classes ``[B]``, or the share of every class ``[B, classes]`` where samples are mixed."""
    sample_ids: Tensor
    """Which samples of the data set these are, ``[B]``."""


@dataclass(frozen=True)
class LoadedBatch:
    """A batch, and what went wrong with samples that were replaced in it, by index."""

    batch: Batch
    complaints: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainTask:
    """Makes the training batches of one epoch for one rank."""

    split: Split
    order: NDArray[np.int64]
    augment: AugmentConfig
    num_classes: int
    seed: int
    epoch: int
    global_batch: int
    rank: int
    world_size: int

    def __call__(self, step: int) -> LoadedBatch:
        """Make the batch of a step."""
        mine = rank_positions(
            step, global_batch=self.global_batch, rank=self.rank, world_size=self.world_size
        )
        if not self.augment.mix.is_on:
            values, index, complaints = self._read(mine)
            target = torch.from_numpy(self.split.labels[index])
            return LoadedBatch(
                Batch(_to_tensor(values), target, torch.from_numpy(index)), complaints
            )
        # partners are neighbours, so whole pairs are read; the last sample may have none
        pairs = range(mine.start & ~1, min((mine.stop + 1) & ~1, len(self.order)))
        values, index, complaints = self._read(pairs)
        height, width = values.shape[-2:]
        mix = choose_mix(
            self.augment.mix, seed=self.seed, epoch=self.epoch, step=step, size=(height, width)
        )
        target = soft_targets(self.split.labels[index], mix.kept, self.num_classes)
        mix_pairs(values, mix)
        own = slice(mine.start - pairs.start, mine.stop - pairs.start)
        x, target, index = _to_tensor(values[own]), target[own], index[own]
        batch = Batch(x, torch.from_numpy(target), torch.from_numpy(index))
        return LoadedBatch(batch, complaints)

    def _read(self, positions: range) -> tuple[Floats, NDArray[np.int64], dict[int, str]]:
        """Read and vary the samples of some positions; return which ones were read, too."""
        index = self.order[positions.start : positions.stop]
        complaints: dict[int, str] = {}
        place: dict[str, int] = {
            "seed": self.seed,
            "epoch": self.epoch,
            "start": positions.start,
        }
        samples: NDArray[Any]
        if isinstance(self.split, DecodedOnRead):
            bits = random_bits(
                RandomStream.RESIZED_CROP, **place, count=len(index), width=CROP_DRAWS
            )
            samples, index, complaints = self.split.read_random_crops(
                index, self.augment.area, bits
            )
        else:
            samples = self.split.read(index)
        if samples.ndim == 5:
            return augment_clips(samples, self.augment, **place), index, complaints
        return augment_images(samples, self.augment, **place), index, complaints


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """Makes the test batches of one rank: as they are, each sample once."""

    split: Split
    augment: AugmentConfig
    positions: range
    batch: int

    def __call__(self, step: int) -> LoadedBatch:
        """Make the batch of a step; the last one may be smaller."""
        mine = self.positions[step * self.batch : (step + 1) * self.batch]
        index = np.arange(mine.start, mine.stop)
        samples = self.split.read(index)
        if samples.ndim == 5:
            values = samples.astype(np.float32)
        else:
            values = normalize(samples, self.augment.normalization)
        target = torch.from_numpy(self.split.labels[index])
        return LoadedBatch(Batch(_to_tensor(values), target, torch.from_numpy(index)))


def _to_tensor(values: Floats) -> Tensor:
    """Put time first where there is any."""
    tensor = torch.from_numpy(values)
    return tensor.transpose(0, 1).contiguous() if tensor.dim() == 5 else tensor


def train_batches(
    data: Data,
    *,
    seed: int,
    epoch: int,
    global_batch: int,
    rank: int = 0,
    world_size: int = 1,
    start_step: int = 0,
    num_workers: int = 0,
    timeout: float = TIMEOUT,
) -> Iterator[Batch]:
    """Yield a rank's part of every global batch of an epoch, from ``start_step`` on.

    The last incomplete global batch is dropped. Rank r gets the r-th of ``world_size`` equal parts.

    Args:
        data: an open data set.
        seed: of the run.
        epoch: counted from zero.
        global_batch: number of samples of all ranks together.
        rank: this process.
        world_size: number of processes.
        start_step: where to begin, to resume an epoch.
        num_workers: number of processes that prepare batches; 0 prepares them here.
        timeout: seconds to wait for a worker.
    """
    steps = range(start_step, steps_per_epoch(data, global_batch))
    rank_positions(
        0, global_batch=global_batch, rank=rank, world_size=world_size
    )  # refuses bad ones early
    split = data.splits.train
    shards = split.rows.shards if isinstance(split, DecodedOnRead) else None
    task = TrainTask(
        split=split,
        order=epoch_order(data.num_train, seed=seed, epoch=epoch, shards=shards),
        augment=data.config.augment,
        num_classes=data.num_classes,
        seed=seed,
        epoch=epoch,
        global_batch=global_batch,
        rank=rank,
        world_size=world_size,
    )
    return _batches(data, map_in_order(task, steps, num_workers=num_workers, timeout=timeout))


def eval_batches(
    data: Data,
    *,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    timeout: float = TIMEOUT,
) -> Iterator[Batch]:
    """Yield a rank's part of the test samples, over all ranks each exactly once.

    Nothing is padded: the last batch may be smaller, and ranks may differ by a batch.
    """
    if batch < 1:
        raise ParameterError(f"a batch must hold at least 1 sample, got {batch}")
    positions = eval_positions(data.num_test, rank=rank, world_size=world_size, batch=batch)
    task = EvalTask(
        split=data.splits.test, augment=data.config.augment, positions=positions, batch=batch
    )
    steps = range(-(-len(positions) // batch))
    return _batches(data, map_in_order(task, steps, num_workers=num_workers, timeout=timeout))


def _batches(data: Data, results: Iterator[LoadedBatch]) -> Iterator[Batch]:
    for made in results:
        _count_corrupt(data, made.complaints)
        yield made.batch


def _count_corrupt(data: Data, complaints: dict[int, str]) -> None:
    """Keep account of replaced samples, and stop when there are too many."""
    allowed = int(data.config.max_corrupt * data.num_train)
    for index, complaint in complaints.items():
        if index in data.corrupt:
            continue
        data.corrupt[index] = complaint
        if len(data.corrupt) > allowed:
            raise CorruptSample(
                f"{complaint}; {len(data.corrupt)} corrupt training samples are more than "
                f"the {allowed} that max_corrupt={data.config.max_corrupt:g} allows"
            )
        warnings.warn(
            f"{complaint}; trained on its neighbour instead "
            f"({len(data.corrupt)} of at most {allowed})",
            stacklevel=3,
        )
