"""The caller's own samples: torch datasets, Hugging Face datasets, arrays."""

import hashlib
import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from lbq.config_io import digest
from lbq.data.batch import LoadedBatch
from lbq.data.sampler import RandomStream, epoch_order, random_bits, rank_positions
from lbq.errors import ParameterError, ShapeError

_TARGETS = ("label", "labels", "target", "fine_label")
"""Names of the column with the target, where samples are mappings."""
_EVALUATION = 2**32 - 1
"""Stands for the epoch in the seeds of test samples; no run trains that long."""


@dataclass(frozen=True)
class UserData:
    """Two map-style data sets, read through the interface of :class:`lbq.data.Data`.

    Args:
        train: training samples.
        test: samples to evaluate on; None for none.
        time_first: whether the first axis of a sample is time; batches are then ``[T, B, ...]``.
    """

    train: Any
    test: Any | None
    time_first: bool = False

    @property
    def num_train(self) -> int:
        """Number of training samples."""
        return len(self.train)

    @property
    def num_test(self) -> int:
        """Number of samples to evaluate on."""
        return 0 if self.test is None else len(self.test)

    @property
    def batch_axis(self) -> int:
        """Axis of a batch that counts samples."""
        return int(self.time_first)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the lengths, and of the fingerprints that the data sets offer."""
        return digest([self.num_train, *map(_fingerprint, (self.train, self.test)), self.num_test])

    def train_steps(
        self, *, seed: int, epoch: int, global_batch: int, rank: int, world_size: int
    ) -> Dataset[LoadedBatch]:
        """Return the training batches of an epoch for one rank, by step."""
        if callable(set_epoch := getattr(self.train, "set_epoch", None)):
            set_epoch(epoch)
        order = epoch_order(self.num_train, seed=seed, epoch=epoch)
        return UserTrainBatches(self, order, seed, epoch, global_batch, rank, world_size)

    def eval_steps(self, positions: range, batch: int) -> Dataset[LoadedBatch]:
        """Return the batches of some test samples, by step."""
        return UserEvalBatches(self, positions, batch)


@dataclass(frozen=True)
class UserTrainBatches(Dataset[LoadedBatch]):
    """The training batches of one epoch for one rank, by step."""

    data: UserData
    order: NDArray[np.int64]
    seed: int
    epoch: int
    global_batch: int
    rank: int
    world_size: int

    def __getitem__(self, step: int) -> LoadedBatch:
        """Read the samples of a step; each finds the generators seeded for its position."""
        mine = rank_positions(
            step, global_batch=self.global_batch, rank=self.rank, world_size=self.world_size
        )
        index = self.order[mine.start : mine.stop]
        seeds = _seeds(self.seed, self.epoch, mine.start, len(index))
        return _read(self.data.train, index, seeds, self.data.batch_axis)


@dataclass(frozen=True)
class UserEvalBatches(Dataset[LoadedBatch]):
    """The batches of one rank of samples to evaluate on, by step."""

    data: UserData
    positions: range
    batch: int

    def __getitem__(self, step: int) -> LoadedBatch:
        """Read the samples of a step; the last batch may be smaller."""
        mine = self.positions[step * self.batch : (step + 1) * self.batch]
        seeds = _seeds(0, _EVALUATION, mine.start, len(mine))
        index = np.arange(mine.start, mine.stop)
        return _read(self.data.test, index, seeds, self.data.batch_axis)


def as_dataset(data: Any, name: str) -> Any:
    """Return a map-style data set of (input, target) for the data of :func:`lbq.fit`.

    Args:
        data: a map-style data set, or a tuple of two arrays or tensors.
        name: name of the argument, for messages.
    """
    if isinstance(data, tuple) and len(data) == 2:  # pyright: ignore[reportUnknownArgumentType]
        pair = [_as_tensor(part) for part in data]  # pyright: ignore[reportUnknownVariableType]
        if len({len(part) for part in pair}) > 1:
            raise ShapeError(
                f"{name} must have as many inputs as targets, got {len(pair[0])} and {len(pair[1])}"
            )
        data = TensorDataset(*pair)
    is_map = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not is_map or isinstance(data, IterableDataset | Tensor | np.ndarray | dict):
        raise ParameterError(
            f"{name} must be a map-style data set (with __len__ and __getitem__) of (input, "
            f"target), or a tuple of two arrays, got {type(data).__name__}; pass a DataLoader's "
            f"dataset instead of the DataLoader, and one split of a DatasetDict"
        )
    if len(data) == 0:
        raise ParameterError(f"{name} must have at least one sample, got none")
    return data


def _as_tensor(values: Any) -> Tensor:
    tensor = torch.as_tensor(values)
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _fingerprint(data: Any) -> str | None:
    """Return a digest of the content: its own fingerprint, or the SHA-256 of its tensors."""
    for name in ("fingerprint", "_fingerprint"):  # the second one is that of Hugging Face datasets
        if isinstance(found := getattr(data, name, None), str):
            return found
    if not isinstance(data, TensorDataset):
        return None
    total = hashlib.sha256()
    for tensor in data.tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def _seeds(seed: int, epoch: int, start: int, count: int) -> NDArray[np.uint64]:
    return random_bits(
        RandomStream.DATASET, seed=seed, epoch=epoch, start=start, count=count, width=3
    )


def _read(
    data: Any, index: NDArray[np.int64], seeds: NDArray[np.uint64], batch_axis: int
) -> LoadedBatch:
    if type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may augment
        x, target = (tensor[torch.from_numpy(index)] for tensor in data.tensors)
    else:
        with restored_generators():
            items = [_read_item(data, int(i), words) for i, words in zip(index, seeds, strict=True)]
        x, target = _collate(items)
    if batch_axis == 1:
        x = x.transpose(0, 1).contiguous()
    return LoadedBatch(x=x, target=target, sample_ids=index)


def _read_item(data: Any, index: int, words: NDArray[np.uint64]) -> tuple[Any, Any]:
    """Read a sample with the global generators seeded: workers do not matter."""
    torch.default_generator.manual_seed(int(words[0] >> np.uint64(1)))
    np.random.seed(int(words[1] >> np.uint64(32)))  # noqa: NPY002 -- what transforms draw from
    random.seed(int(words[2]))
    item = data[index]
    if isinstance(item, Mapping):
        item = _from_columns(item)
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ParameterError(
            f"a sample must be a pair (input, target), got {type(item).__name__} for index {index}"
            f"; return such a pair from the data set's __getitem__"
        )
    x, target = item
    return _from_image(x), target


def _from_columns(item: Mapping[str, Any]) -> tuple[Any, Any]:
    targets = [name for name in _TARGETS if name in item]
    inputs = [name for name in item if name not in targets]
    if len(targets) != 1 or len(inputs) != 1:
        raise ParameterError(
            f"a sample that is a mapping must have one input column and one target column "
            f"({', '.join(_TARGETS)}), got {', '.join(map(str, item))}; keep two columns "
            f"(`dataset.select_columns`), or return (input, target) from a data set of your own"
        )
    return item[inputs[0]], item[targets[0]]


def _from_image(x: Any) -> Any:
    """Turn a Pillow image into float32 in 0..1, ``[C, H, W]``; leave anything else alone."""
    if not (hasattr(x, "getbands") and hasattr(x, "convert")):
        return x
    if x.mode not in ("L", "RGB"):
        x = x.convert("RGB")
    pixels = torch.from_numpy(np.array(x))
    pixels = pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    return pixels.float() / 255


def _collate(items: list[tuple[Any, Any]]) -> tuple[Tensor, Tensor]:
    try:
        x, target = default_collate(items)
    except (RuntimeError, TypeError) as error:
        raise ShapeError(
            f"samples cannot be stacked to a batch: {error}; all inputs, and all targets, must be "
            f"tensors, arrays or numbers of one shape and dtype"
        ) from error
    if not isinstance(x, Tensor) or not isinstance(target, Tensor):
        raise ParameterError(
            f"inputs and targets must each be one tensor, array or number per sample, got a batch "
            f"of {type(x).__name__} and {type(target).__name__}"
        )
    return x, target


@contextmanager
def restored_generators() -> Generator[None]:
    """Restore the global generators of torch (on the CPU), numpy and Python afterwards."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
