"""What is read off a run between two lines of the metrics log: loss, accuracy, rate, activity."""

import time
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from lbq.neurons.watch import watch_levels
from lbq.train.metrics import Record


class TrainMetrics:
    """Averages over the steps since they were last read.

    Loss and right answers arrive as Python's numbers, which the step has read anyway; activity
    stays on its device until it is asked for.

    Args:
        batch: samples of one step, over all processes.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._restart()

    def batch_ready(self) -> None:
        """Note that the wait for data is over."""
        self._waited += time.perf_counter() - self._idle_since

    def update(self, *, loss: float, correct: float) -> None:
        """Note what a step came to."""
        self._steps += 1
        self._loss += loss
        self._correct += correct
        self._idle_since = time.perf_counter()

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        """Count active neurons inside the ``with`` block: it costs a pass over all levels."""
        return watch_levels(model, self._see)

    def read(self) -> Record:
        """Return the averages and start anew."""
        now = time.perf_counter()
        seconds, steps = max(now - self._start, 1e-9), max(self._steps, 1)
        record: Record = {
            "loss": self._loss / steps,
            "accuracy": self._correct / (steps * self._batch),
            "samples_per_s": self._steps * self._batch / seconds,
            "waiting_for_data": self._waited / seconds,
        }
        if self._counts:
            record["active"] = torch.stack(self._counts).sum().item() / self._neurons
        self._restart()
        return record

    def _restart(self) -> None:
        self._start = self._idle_since = time.perf_counter()
        self._waited = self._loss = self._correct = 0.0
        self._steps = self._neurons = 0
        self._counts: list[Tensor] = []

    def _see(self, layer: str, t: int, level: Tensor) -> None:
        self._counts.append(level.count_nonzero())
        self._neurons += level.numel()
