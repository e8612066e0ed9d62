"""Move batches to the device; for GPUs a thread copies in advance."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from lbq.data import Batch

Item = TypeVar("Item")
Result = TypeVar("Result")

_DEPTH = 2
"""Batches that are prefetched."""


def prefetch_to_device(
    batches: Iterable[Batch], device: torch.device, *, channels_last: bool
) -> Iterator[Batch]:
    """Yield the batches on a device.

    For a GPU a batch is copied through pinned memory on a separate stream: a copy from pageable
    memory would block the host at every step.
    """
    if device.type != "cuda":
        for batch in batches:
            yield _moved(batch, device, channels_last)
        return
    copying = torch.cuda.Stream(device)

    def copy(batch: Batch) -> tuple[Batch, Any]:
        pinned = Batch(batch.x.pin_memory(), batch.target.pin_memory(), batch.sample_ids)
        with torch.cuda.stream(copying):
            return _moved(pinned, device, channels_last), copying.record_event()

    for batch, copied in prefetch(batches, copy):
        computing = torch.cuda.current_stream(device)
        computing.wait_event(copied)
        batch.x.record_stream(computing)  # freed only when both streams are done
        batch.target.record_stream(computing)
        yield batch


def to_device(inputs: Tensor, device: torch.device, *, channels_last: bool) -> Tensor:
    """Move inputs to the device; images also to channels last if asked for."""
    if channels_last and inputs.dim() == 4:
        return inputs.to(device, non_blocking=True, memory_format=torch.channels_last)
    return inputs.to(device, non_blocking=True)


def prefetch(items: Iterable[Item], prepare: Callable[[Item], Result]) -> Iterator[Result]:
    """Yield ``prepare(item)`` in order, computed by a thread a few items in advance.

    Exceptions of the thread are raised here. The thread ends with the iterator.
    """
    iterator = iter(items)

    def produce() -> tuple[Result] | None:
        for item in iterator:
            return (prepare(item),)
        return None

    with ThreadPoolExecutor(max_workers=1) as pool:
        pending = deque(pool.submit(produce) for _ in range(_DEPTH))
        try:
            while (found := pending.popleft().result()) is not None:
                pending.append(pool.submit(produce))
                yield found[0]
        finally:
            for future in pending:
                future.cancel()


def _moved(batch: Batch, device: torch.device, channels_last: bool) -> Batch:
    x = to_device(batch.x, device, channels_last=channels_last)
    return Batch(x, batch.target.to(device, non_blocking=True), batch.sample_ids)
