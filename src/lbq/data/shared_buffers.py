"""Shared buffers in which loader processes pass images to the main process.

torch passes every tensor in new shared memory, whose pages the system adds one by one: for
photographs this takes a tenth of the processors' time. Here the workers reuse the same memory. It
is not a file in /dev/shm, which is small in containers.
"""

import mmap
from dataclasses import dataclass

import numpy as np
from torch.utils.data import get_worker_info

from lbq.data.autoaugment import Bytes

PREFETCH_FACTOR = 2
"""Batches that a worker prepares in advance."""
_SLOTS_PER_WORKER = PREFETCH_FACTOR + 1
"""One more, which the main process reads meanwhile."""


@dataclass(frozen=True)
class BufferSlot:
    """The buffer that has the images of a step."""

    worker: int
    number: int
    step: int
    shape: tuple[int, ...]


class SharedBuffers:
    """Buffers for batches, allocated before the workers are forked.

    Args:
        num_workers: number of loader processes.
        num_bytes: bytes of the largest batch.
    """

    def __init__(self, num_workers: int, num_bytes: int) -> None:
        shape = num_workers, _SLOTS_PER_WORKER, num_bytes
        self._images = np.frombuffer(
            mmap.mmap(-1, num_workers * _SLOTS_PER_WORKER * num_bytes), np.uint8
        )
        self._images = self._images.reshape(shape)
        steps = mmap.mmap(-1, num_workers * _SLOTS_PER_WORKER * 8)
        self._steps = np.frombuffer(steps, np.int64).reshape(shape[:2])
        self._count = 0

    def write(self, images: Bytes, step: int) -> BufferSlot:
        """Write images into the next buffer; called by a worker."""
        worker = get_worker_info()
        assert worker is not None
        slot = BufferSlot(worker.id, self._count % _SLOTS_PER_WORKER, step, images.shape)
        self._count += 1
        self._steps[slot.worker, slot.number] = -1
        self._images[slot.worker, slot.number, : images.size] = images.reshape(-1)
        self._steps[slot.worker, slot.number] = step
        return slot

    def read(self, slot: BufferSlot) -> Bytes:
        """Return the images of a slot, not copied: they stay until the next batch is asked for."""
        size = int(np.prod(slot.shape))
        return self._images[slot.worker, slot.number, :size].reshape(slot.shape)

    def check(self, slot: BufferSlot) -> None:
        """Raise if a worker wrote to the slot again before it was read."""
        found = int(self._steps[slot.worker, slot.number])
        if found != slot.step:
            raise RuntimeError(
                f"the images of step {slot.step} were overwritten by step {found} of worker "
                f"{slot.worker}; this is an error in lbq, please report it"
            )
