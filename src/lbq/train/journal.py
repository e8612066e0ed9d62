"""The journal of a run: one JSON object per line, only ever appended to."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

Record = dict[str, Any]
"""One thing that happened: its ``event``, its ``step``, and numbers or words by name."""

Listener = Callable[[Record], None]
"""Is told every record as it happens: a journal, a progress bar, a chart."""


class Journal:
    """Appends records to a file; a full disk loses lines later, never the run.

    Lines that cannot be written are kept in memory and tried again with the next one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._has_complained = False

    def __call__(self, record: Record) -> None:
        """Append a record, with the time."""
        line = json.dumps({"time": round(time.time(), 3), **_sayable(record)}, allow_nan=False)
        self._pending.append(line.encode() + b"\n")
        try:
            self._write()
        except OSError as error:
            if not self._has_complained:
                _log.error("%s cannot be written, its lines wait in memory: %s", self.path, error)
            self._has_complained = True
            return
        self._has_complained = False

    def _write(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if is_torn else b"") + b"".join(self._pending)
            while data:  # a nearly full disk takes a part
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
        self._pending.clear()


def _sayable(record: Record) -> Record:
    """Write numbers that JSON does not know as words: "nan", "inf"."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def read_journal(path: Path) -> Iterator[Record]:
    """Yield the records that count, in order.

    A line that a kill tore is skipped. Where a run resumed from an earlier step, the records of the
    steps that it then repeated are left out: what remains is one line of history.
    """
    records: list[Record] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("event") == "resume":
            records = [r for r in records if r.get("step", 0) <= record["step"]]
        records.append(record)
    yield from records
