"""Bringing batches to the device; on GPUs a thread copies ahead while the device computes."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from lbq.data import Batch

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2
"""Batches that wait on the device."""


def prefetch_to_device(
    batches: Iterable[Batch], device: torch.device, *, channels_last: bool
) -> Iterator[Batch]:
    """Yield the batches on a device, images in the memory order asked for.

    A batch on a CPU is where it is needed. For a GPU it is copied through pinned memory on a stream
    of its own: a copy from pageable memory would stop the host, and the device behind it, at every
    step.
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

    for batch, copied in ahead(batches, copy):
        computing = torch.cuda.current_stream(device)
        computing.wait_event(copied)
        batch.x.record_stream(computing)  # its memory is free only when both streams are through
        batch.target.record_stream(computing)
        yield batch


def to_device(inputs: Tensor, device: torch.device, *, channels_last: bool) -> Tensor:
    """Bring inputs to where the network is; images also into the memory order asked for."""
    if channels_last and inputs.dim() == 4:
        return inputs.to(device, non_blocking=True, memory_format=torch.channels_last)
    return inputs.to(device, non_blocking=True)


def ahead(items: Iterable[Item], prepare: Callable[[Item], Result]) -> Iterator[Result]:
    """Yield ``prepare(item)`` in order, prepared by a thread a few items in advance.

    What the thread raises is raised here. The thread ends when the items do, or soon after nobody
    asks for more.
    """
    ready: queue.Queue[Any] = queue.Queue(maxsize=_AHEAD)
    is_over = threading.Event()

    def put(kind: str, value: Any) -> bool:
        while not is_over.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", prepare(item)):
                    return
            put("end", None)
        except BaseException as error:
            put("error", error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        is_over.set()
        thread.join(10)


def _moved(batch: Batch, device: torch.device, channels_last: bool) -> Batch:
    x = to_device(batch.x, device, channels_last=channels_last)
    return Batch(x, batch.target.to(device, non_blocking=True), batch.sample_ids)
