"""Metrics of a run: averages over steps, the log as JSON lines, TensorBoard charts."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lbq.config_io import DocumentError, parse_json
from lbq.errors import MissingExtraError, install_command
from lbq.neurons.watch import watch_levels

_log = logging.getLogger(__name__)

Record = dict[str, Any]
"""One event of a run: its ``event``, its ``step``, and values by name."""

Callback = Callable[[Record], None]
"""Called with every record: a metrics log, a progress bar, a chart."""


class MetricsLog:
    """Appends records to a JSON lines file; a full disk does not end the run.

    Lines that cannot be written are kept in memory and written with the next one. Every record gets
    the time of day and the seconds, by a monotonic clock, since this object was created.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._start = time.monotonic()
        self._pending: list[bytes] = []
        self._has_reported = False

    def __call__(self, record: Record) -> None:
        """Append a record, with the time."""
        times = {
            "time": round(time.time(), 3),
            "elapsed_s": round(time.monotonic() - self._start, 3),
        }
        line = json.dumps({**times, **_json_safe(record)}, allow_nan=False)
        self._pending.append(line.encode() + b"\n")
        try:
            self._write()
        except OSError as error:
            if not self._has_reported:
                _log.error(
                    "%s cannot be written, its lines are kept in memory: %s", self.path, error
                )
            self._has_reported = True
            return
        self._has_reported = False

    def _write(self) -> None:
        """Write the pending lines, and keep those that were not written completely."""
        data, written = b"".join(self._pending), 0
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")  # end a partial line
            while written < len(data):  # a nearly full disk writes a part
                written += os.write(descriptor, data[written:])
        finally:
            while self._pending and written >= len(self._pending[0]):
                written -= len(self._pending.pop(0))
            os.close(descriptor)


def _json_safe(record: Record) -> Record:
    """Write floats that JSON does not have as strings: "nan", "inf"."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def read_metrics_log(path: str | Path) -> Iterator[Record]:
    """Yield the records of a run, in order.

    After a resume from an earlier step, the records of the steps that are repeated are left out.
    """
    records: list[Record] = []
    for record in read_all_records(path):
        if record["event"] == "resume":
            records = [r for r in records if r["step"] <= record["step"]]
        records.append(record)
    yield from records


def read_all_records(path: str | Path) -> Iterator[Record]:
    """Yield every record, in order; skip lines that are cut short or not from a run."""
    path = Path(path)
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = parse_json(line, "a line")
        except DocumentError:
            continue
        if (
            isinstance(record, dict)
            and isinstance(record.get("event"), str)
            and isinstance(record.get("step"), int)
            and _has_numbers(record)
        ):
            yield record


_COUNTS = ("epoch", "correct", "count", "parameters", "accuracy")
_EVALUATION = ("epoch", "loss", "count")


def _has_numbers(record: Record) -> bool:
    """Return whether the fields that readers of a log compute with are numbers."""
    if record["event"] == "evaluation" and not all(name in record for name in _EVALUATION):
        return False
    numbers = [record[name] for name in _COUNTS if name in record]
    loss = record.get("loss", 0.0)
    numbers += [] if loss in ("nan", "inf", "-inf") else [loss]
    return all(isinstance(each, (int, float)) and each is not True for each in numbers)


class TrainMetrics:
    """Averages over the steps since the last :meth:`compute_and_reset`.

    Activity counts stay on the device until then.
    """

    def __init__(self, global_batch: int, *, has_accuracy: bool = True) -> None:
        self._batch = global_batch
        self._has_accuracy = has_accuracy
        self._reset()

    def batch_ready(self) -> None:
        """Stop the clock that measures waiting for data."""
        self._waited += time.perf_counter() - self._idle_since

    def update(self, *, loss: float, correct: float) -> None:
        """Add the results of a step."""
        self._steps += 1
        self._loss += loss
        self._correct += correct
        self._idle_since = time.perf_counter()

    def watch_activity(self, model: nn.Module) -> AbstractContextManager[None]:
        """Count active neurons inside the ``with`` block; costs a pass over all levels."""
        return watch_levels(model, self._count)

    def compute_and_reset(self) -> Record:
        """Return the averages and reset them."""
        now = time.perf_counter()
        seconds, steps = max(now - self._start, 1e-9), max(self._steps, 1)
        record: Record = {
            "loss": self._loss / steps,
            "samples_per_s": self._steps * self._batch / seconds,
            "waiting_for_data": self._waited / seconds,
        }
        if self._has_accuracy:
            record["accuracy"] = self._correct / (steps * self._batch)
        if self._counts:
            record["active"] = torch.stack(self._counts).sum().item() / self._neurons
        self._reset()
        return record

    def _reset(self) -> None:
        self._start = self._idle_since = time.perf_counter()
        self._waited = self._loss = self._correct = 0.0
        self._steps = self._neurons = 0
        self._counts: list[Tensor] = []

    def _count(self, layer: str, t: int, level: Tensor) -> None:
        self._counts.append(level.count_nonzero())
        self._neurons += level.numel()


class TensorBoardCallback:
    """Writes the records of a run as TensorBoard scalars."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415 -- an extra
        except ImportError as error:
            raise MissingExtraError(
                f"charts need the tensorboard package: {install_command('train')}"
            ) from error
        self._writer = SummaryWriter(str(folder))

    def __call__(self, record: Record) -> None:
        """Add a point to the chart of every number in the record."""
        for name, value in record.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and name != "step":
                self._writer.add_scalar(f"{record['event']}/{name}", value, record["step"])
        self._writer.flush()
