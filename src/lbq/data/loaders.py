"""Batches of training and test samples through torch's ``DataLoader``.

A batch is a function of data, seed, epoch and step. The map-style datasets below return the batch
of a step, and the sampler is the range of steps that are left: neither the number of workers nor
torch's random state changes a bit, and an epoch resumes at any step. A worker that dies or hangs
raises ``RuntimeError`` in the main process (docs/decisions/0022).
"""

import atexit
import math
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, multiprocessing
from torch.utils.data import DataLoader, Dataset

from lbq.data.augment import (
    AugmentConfig,
    Floats,
    augment_images,
    choose_mix,
    mix_pairs,
    normalize,
    soft_targets,
)
from lbq.data.autoaugment import Bytes
from lbq.data.batch import Batch, LoadedBatch
from lbq.data.dataset import Data
from lbq.data.encoded_images import CROP_DRAWS, DecodedOnRead
from lbq.data.event_augment import augment_clips
from lbq.data.sampler import (
    RandomStream,
    epoch_order,
    eval_positions,
    num_steps,
    random_bits,
    rank_positions,
)
from lbq.data.shared_buffers import PREFETCH_FACTOR, BufferSlot, SharedBuffers
from lbq.data.splits import Split
from lbq.data.user_data import UserData
from lbq.errors import CorruptSample, LBQError, ParameterError

_CAN_FORK = "fork" in multiprocessing.get_all_start_methods()  # starts in milliseconds
TIMEOUT_S = 120.0
"""Seconds after which a worker that returns nothing has hung."""

Item = TypeVar("Item")


def train_batches(
    data: Data | UserData,
    *,
    seed: int,
    epoch: int,
    global_batch: int,
    rank: int = 0,
    world_size: int = 1,
    start_step: int = 0,
    num_workers: int = 0,
    timeout: float = TIMEOUT_S,
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
        start_step: first step, to resume an epoch.
        num_workers: number of loader processes; 0 loads in this process.
        timeout: seconds to wait for a worker.
    """
    steps = range(start_step, num_steps(data.num_train, global_batch))
    rank_positions(0, global_batch=global_batch, rank=rank, world_size=world_size)  # validates
    if isinstance(data, Data):
        batches = TrainBatches(
            split=data.splits.train,
            order=epoch_order(data.num_train, seed=seed, epoch=epoch),
            augment=data.config.augment,
            num_classes=data.num_classes,
            seed=seed,
            epoch=epoch,
            global_batch=global_batch,
            rank=rank,
            world_size=world_size,
        )
    else:
        batches = data.train_steps(
            seed=seed, epoch=epoch, global_batch=global_batch, rank=rank, world_size=world_size
        )
    return _load(data, batches, steps, num_workers=num_workers, timeout=timeout)


def eval_batches(
    data: Data | UserData,
    *,
    batch: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    timeout: float = TIMEOUT_S,
) -> Iterator[Batch]:
    """Yield a rank's part of the test samples; over all ranks, each sample occurs once.

    Nothing is padded: the last batch may be smaller, and ranks may differ by a batch.
    """
    if batch < 1:
        raise ParameterError(f"a batch must hold at least 1 sample, got {batch}")
    positions = eval_positions(data.num_test, rank=rank, world_size=world_size, batch=batch)
    if isinstance(data, Data):
        batches = EvalBatches(
            split=data.splits.test, augment=data.config.augment, positions=positions, batch=batch
        )
    else:
        batches = data.eval_steps(positions, batch)
    steps = range(-(-len(positions) // batch))
    return _load(data, batches, steps, num_workers=num_workers, timeout=timeout)


@dataclass(frozen=True, kw_only=True)
class TrainBatches(Dataset[LoadedBatch]):
    """The training batches of one epoch for one rank, by step."""

    split: Split
    order: NDArray[np.int64]
    augment: AugmentConfig
    num_classes: int
    seed: int
    epoch: int
    global_batch: int
    rank: int
    world_size: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the samples of a step."""
        return self.global_batch // self.world_size * math.prod(self.split.shape)

    def __getitem__(self, step: int) -> LoadedBatch:
        """Read, augment and mix the samples of a step."""
        mine = rank_positions(
            step, global_batch=self.global_batch, rank=self.rank, world_size=self.world_size
        )
        if not self.augment.mix.is_on:
            values, index, replaced = self._read(mine)
            return _to_loaded(values, self.split.labels[index], index, replaced)
        # partners are neighbours, so whole pairs are read; the last sample may have none
        pairs = range(mine.start & ~1, min((mine.stop + 1) & ~1, len(self.order)))
        values, index, replaced = self._read(pairs)
        values = normalize(values, self.augment.normalization)
        height, width = values.shape[-2:]
        mix = choose_mix(
            self.augment.mix, seed=self.seed, epoch=self.epoch, step=step, size=(height, width)
        )
        target = soft_targets(self.split.labels[index], mix.kept, self.num_classes)
        mix_pairs(values, mix)
        own = slice(mine.start - pairs.start, mine.stop - pairs.start)
        return _to_loaded(values[own], target[own], index[own], replaced)

    def _read(self, positions: range) -> tuple[Bytes | Floats, NDArray[np.int64], dict[int, str]]:
        """Read and augment the samples at some positions of the epoch; also return their indices.

        Indices differ from the epoch's order where corrupt samples were replaced.
        """
        index = self.order[positions.start : positions.stop]
        replaced: dict[int, str] = {}
        key: dict[str, int] = {"seed": self.seed, "epoch": self.epoch, "start": positions.start}
        samples: NDArray[Any]
        if isinstance(self.split, DecodedOnRead):
            bits = random_bits(RandomStream.RESIZED_CROP, **key, count=len(index), width=CROP_DRAWS)
            samples, index, replaced = self.split.read_random_crops(index, self.augment.area, bits)
        else:
            samples = self.split.read(index)
        augmented = augment_clips if samples.ndim == 5 else augment_images
        return augmented(samples, self.augment, **key), index, replaced


@dataclass(frozen=True, kw_only=True)
class EvalBatches(Dataset[LoadedBatch]):
    """The test batches of one rank, by step: normalised only, each sample once."""

    split: Split
    augment: AugmentConfig
    positions: range
    batch: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the samples of a step."""
        return self.batch * math.prod(self.split.shape)

    def __getitem__(self, step: int) -> LoadedBatch:
        """Read the samples of a step; the last batch may be smaller."""
        mine = self.positions[step * self.batch : (step + 1) * self.batch]
        index = np.arange(mine.start, mine.stop)
        samples = self.split.read(index)
        values = samples.astype(np.float32) if samples.ndim == 5 else samples
        return _to_loaded(values, self.split.labels[index], index)


def _to_loaded(
    values: Bytes | Floats,
    target: NDArray[Any],
    index: NDArray[np.int64],
    replaced: dict[int, str] | None = None,
) -> LoadedBatch:
    """Describe a batch for the main process; clips ``[B, T, ...]`` become ``[T, B, ...]``."""
    x: Any = values if values.dtype == np.uint8 else torch.from_numpy(values)
    if x.ndim == 5:
        x = x.swapaxes(0, 1).contiguous()
    return LoadedBatch(x=x, target=target, sample_ids=index, replaced=replaced or {})


def _load(
    data: Data | UserData,
    batches: Dataset[LoadedBatch],
    steps: range,
    *,
    num_workers: int,
    timeout: float,
) -> Iterator[Batch]:
    """Yield the batches of all steps in order."""
    buffers = None
    if num_workers and _CAN_FORK and isinstance(batches, TrainBatches | EvalBatches):
        buffers = SharedBuffers(num_workers, batches.num_bytes)
        batches = _ThroughBuffers(batches, buffers)
    for loaded in load_steps(batches, steps, num_workers=num_workers, timeout=timeout):
        if isinstance(data, Data):
            _count_replaced(data, loaded.replaced)
        x = loaded.x if isinstance(loaded.x, Tensor) else _normalize(loaded.x, data, buffers)
        yield Batch(x, torch.as_tensor(loaded.target), torch.from_numpy(loaded.sample_ids))


def _normalize(
    x: Bytes | BufferSlot, data: Data | UserData, buffers: SharedBuffers | None
) -> Tensor:
    assert isinstance(data, Data)
    normalization = data.config.augment.normalization
    if not isinstance(x, BufferSlot):
        return torch.from_numpy(normalize(x, normalization))
    assert buffers is not None
    values = normalize(buffers.read(x), normalization)
    buffers.check(x)
    return torch.from_numpy(values)


@dataclass(frozen=True)
class _ThroughBuffers(Dataset[LoadedBatch]):
    """Passes images through shared buffers."""

    batches: Dataset[LoadedBatch]
    buffers: SharedBuffers

    def __getitem__(self, step: int) -> LoadedBatch:
        loaded = self.batches[step]
        if isinstance(loaded.x, np.ndarray):
            return replace(loaded, x=self.buffers.write(loaded.x, step))
        return loaded


def load_steps(
    dataset: Dataset[Item], steps: range, *, num_workers: int, timeout: float = TIMEOUT_S
) -> Iterator[Item]:
    """Yield ``dataset[step]`` for every step, in order, by ``num_workers`` processes.

    Raises:
        LBQError: as ``dataset`` raised it.
        RuntimeError: if a worker died, or returned nothing for ``timeout`` seconds.
    """
    loader = DataLoader(
        _ErrorsAsItems(dataset),
        batch_size=None,
        sampler=steps,
        collate_fn=_unchanged,
        num_workers=num_workers,
        prefetch_factor=PREFETCH_FACTOR if num_workers else None,
        timeout=timeout if num_workers else 0,
        worker_init_fn=_ignore_stop_signals,
        multiprocessing_context="fork" if num_workers and _CAN_FORK else None,
        generator=torch.Generator(),  # of worker seeds, which nothing uses; not the global one
    )
    iterator = iter(loader)
    stop = partial(_stop_workers, iterator)
    if num_workers:
        atexit.register(stop)  # runs before multiprocessing's handler, which waits for workers
    try:
        for item in iterator:
            if isinstance(item, LBQError):
                raise item
            yield item
    except (EOFError, ConnectionError) as error:  # a worker died while it passed a tensor
        raise RuntimeError(f"DataLoader worker exited unexpectedly ({error!r})") from error
    finally:
        if num_workers:
            atexit.unregister(stop)
            stop()


@dataclass(frozen=True)
class _ErrorsAsItems(Dataset[Any]):
    """Returns errors instead of raising them: DataLoader adds a traceback to their message."""

    dataset: Dataset[Any]

    def __getitem__(self, step: int) -> Any:
        try:
            return self.dataset[step]
        except LBQError as error:
            return error


def _unchanged(item: Item) -> Item:
    return item


def _ignore_stop_signals(worker: int) -> None:
    """Ignore SIGINT and SIGTERM: schedulers send them to all, the main process reacts."""
    del worker
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _stop_workers(iterator: Any) -> None:
    """Stop the workers of a DataLoader, also those that hang: they ignore its SIGTERM."""
    iterator._shutdown_workers()
    for worker in iterator._workers:
        worker.kill()
        worker.join()


def _count_replaced(data: Data, replaced: dict[int, str]) -> None:
    """Record the replaced samples; raise if there are too many."""
    allowed = int(data.config.max_corrupt * data.num_train)
    for index, message in replaced.items():
        if index in data.corrupt:
            continue
        data.corrupt[index] = message
        if len(data.corrupt) > allowed:
            raise CorruptSample(
                f"{message}; {len(data.corrupt)} corrupt training samples are more than "
                f"the {allowed} that max_corrupt={data.config.max_corrupt:g} allows"
            )
        warnings.warn(
            f"{message}; trained on its neighbour instead "
            f"({len(data.corrupt)} of at most {allowed})",
            stacklevel=3,
        )
