"""Shared memory in which loader processes leave images for the main process.

torch hands every tensor over in new shared memory, whose pages the system adds one by one: for
photographs a tenth of the processors' time. Here the workers use the same memory all the time. It
is no file of /dev/shm, which is small in containers.
"""

import mmap
from dataclasses import dataclass

import numpy as np
from torch.utils.data import get_worker_info

from lbq.data.autoaugment import Bytes

PREPARED = 2
"""Batches that a worker prepares in advance."""
_PER_WORKER = PREPARED + 1
"""One more, which the main process reads meanwhile."""


@dataclass(frozen=True)
class Place:
    """Where the images of a step are."""

    worker: int
    number: int
    step: int
    shape: tuple[int, ...]


class SharedPlaces:
    """Places for batches, allocated before the workers are forked.

    Args:
        num_workers: number of loader processes.
        num_bytes: of the largest batch.
    """

    def __init__(self, num_workers: int, num_bytes: int) -> None:
        shape = num_workers, _PER_WORKER, num_bytes
        self._images = np.frombuffer(mmap.mmap(-1, num_workers * _PER_WORKER * num_bytes), np.uint8)
        self._images = self._images.reshape(shape)
        steps = mmap.mmap(-1, num_workers * _PER_WORKER * 8)
        self._steps = np.frombuffer(steps, np.int64).reshape(shape[:2])
        self._count = 0

    def put(self, images: Bytes, step: int) -> Place:
        """Leave images; called by a worker."""
        worker = get_worker_info()
        assert worker is not None
        place = Place(worker.id, self._count % _PER_WORKER, step, images.shape)
        self._count += 1
        self._steps[place.worker, place.number] = -1
        self._images[place.worker, place.number, : images.size] = images.reshape(-1)
        self._steps[place.worker, place.number] = step
        return place

    def look(self, place: Place) -> Bytes:
        """Return the images of a place; they stay until the next batch is asked for."""
        size = int(np.prod(place.shape))
        return self._images[place.worker, place.number, :size].reshape(place.shape)

    def check(self, place: Place) -> None:
        """Raise if a worker wrote to the place before it was read."""
        found = int(self._steps[place.worker, place.number])
        if found != place.step:
            raise RuntimeError(
                f"the images of step {place.step} were overwritten by step {found} of worker "
                f"{place.worker}; this is an error in lbq, please report it"
            )
