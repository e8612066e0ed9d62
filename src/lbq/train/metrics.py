"""The metrics log of a run: one JSON object per line, only ever appended to."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lbq.config_io import DocumentError, parse_json

_log = logging.getLogger(__name__)

Record = dict[str, Any]
"""One thing that happened: its ``event``, its ``step``, and numbers or words by name."""

Callback = Callable[[Record], None]
"""Is told every record as it happens: a metrics log, a progress bar, a chart."""


class MetricsLog:
    """Appends records to a file; a full disk loses lines later, never the run.

    Lines that cannot be written are kept in memory and tried again with the next one. Every record
    gets the time of day and, since that clock may be set, the seconds since this object was made.
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
                _log.error("%s cannot be written, its lines wait in memory: %s", self.path, error)
            self._has_reported = True
            return
        self._has_reported = False

    def _write(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")  # ends a line that was written in part
            while self._pending:
                self._write_lines(descriptor)
        finally:
            os.close(descriptor)

    def _write_lines(self, descriptor: int) -> None:
        """Write the lines that wait, and keep those that were not written whole."""
        data, written = b"".join(self._pending), 0
        try:
            while written < len(data):  # a nearly full disk takes a part
                written += os.write(descriptor, data[written:])
        finally:
            while self._pending and written >= len(self._pending[0]):
                written -= len(self._pending.pop(0))


def _json_safe(record: Record) -> Record:
    """Write numbers that JSON does not know as words: "nan", "inf"."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def read_metrics_log(path: str | Path) -> Iterator[Record]:
    """Yield the records that count, in order.

    Where a run resumed from an earlier step, the records of the steps that it then repeated are
    left out: what remains is one line of history.
    """
    records: list[Record] = []
    for record in read_all_records(path):
        if record["event"] == "resume":
            records = [r for r in records if r["step"] <= record["step"]]
        records.append(record)
    yield from records


def read_all_records(path: str | Path) -> Iterator[Record]:
    """Yield every record, in order; lines that a kill or a full disk cut short are skipped."""
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
        ):
            yield record
