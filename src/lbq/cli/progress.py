"""Progress of commands and runs: a bar or a spinner in a terminal, lines elsewhere."""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from lbq.cli.terminal import Console
from lbq.train.evaluation import Evaluation, best_of
from lbq.train.metrics import Record
from lbq.train.task import Outcome
from lbq.train.train_config import TrainConfig

Item = TypeVar("Item")

TERMINAL_S, LOG_S = 1.0, 10.0
"""Seconds between two reports: in a terminal, and between two lines elsewhere."""

_WINDOW_S = 60.0
"""Seconds over which a rate is measured."""


def track_progress(
    items: Iterable[Item], *, total: int, what: str, console: Console | None = None
) -> Iterator[Item]:
    """Yield the items, and show on the standard error how many are done."""
    with progress_counter(what, console) as report:
        for done, item in enumerate(items, start=1):
            yield item
            report(done, total)


@contextmanager
def progress_counter(
    what: str, console: Console | None = None
) -> Generator[Callable[[int, int], None]]:
    """Yield a function that shows how many items of the total are done."""
    console = Console(stderr=True, soft_wrap=True) if console is None else console
    if console.is_terminal:
        columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)
        return
    start = last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LOG_S and done < total:
            last = now
            left = _time_left(total - done, done / (now - start))
            console.print_text(f"{what}: {done} of {total}, {left}")

    yield report


@contextmanager
def show_status(what: str, console: Console | None = None) -> Generator[None]:
    """Show what the command is doing, on the standard error."""
    console = Console(stderr=True, soft_wrap=True) if console is None else console
    if console.is_terminal:
        with console.status(what):
            yield
        return
    console.print_text(what)
    yield


class Display:
    """Shows the records of a run as they arrive, and its progress at intervals.

    Args:
        config: the training settings.
        console: the standard output by default.
    """

    def __init__(self, config: TrainConfig, console: Console | None = None) -> None:
        self._console = Console(soft_wrap=True) if console is None else console
        self._config = config
        self._bar = _bar(self._console) if self._console.is_terminal else None
        self._task = None
        self._status = None
        self._total = self._epoch_steps = 1
        self._done: deque[tuple[float, int]] = deque()  # when how many steps were done
        self._losses: list[float] = []  # since the last report
        self._details = ""
        self._reported = float("-inf")

    def wait(self, what: str) -> None:
        """Show a status until the first record."""
        if not self._console.is_terminal:
            self.say(what)
            return
        self._status = self._console.status(Text(what))  # not markup
        self._status.start()

    def __call__(self, record: Record) -> None:
        """Show a record."""
        self._stop_waiting()
        if record["event"] in ("start", "resume"):
            self._begin(record)
        elif record["event"] == "step":
            self._move(record["step"], record["loss"])
        elif record["event"] == "evaluating" and self._is_due():
            words = f"evaluating: {record['done']:,} of {record['total']:,}"
            self._report(record["step"], words)
        elif record["event"] == "train":
            self._details = _details(record)
        elif record["event"] == "evaluation":
            self.say(_evaluation(record, self._config.epochs))
            self._restart_clock(record["step"])
        elif record["event"] in ("skip", "save_failed"):
            self.say(f"step {record['step']}: {record['event']}")

    def say(self, words: str) -> None:
        """Show a line, above the bar if there is one."""
        self._console.print_text(words)

    def close(self) -> None:
        """Stop the bar and the spinner."""
        self._stop_waiting()
        if self._bar is not None:
            self._bar.stop()

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()

    def _begin(self, record: Record) -> None:
        self._total, self._epoch_steps = record["total_steps"], record["steps_per_epoch"]
        verb = "training" if record["event"] == "start" else f"continuing at step {record['step']}"
        name, threads = record.get("recipe", record.get("model")), record["threads"]
        self.say(
            f"{verb}: {name}, {record['parameters']:,} parameters, "
            f"{record['total_steps']:,} steps of {self._config.batch} samples, "
            f"{record['processes']} x {record['device']} ({threads} "
            f"{'thread' if threads == 1 else 'threads'}), {record['precision']}"
        )
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=self._total, completed=record["step"], words="", place=""
            )
        self._restart_clock(record["step"])

    def _restart_clock(self, step: int) -> None:
        """Measure the rate from here on, without the time of evaluations."""
        self._done.clear()
        self._done.append((time.monotonic(), step))

    def _move(self, step: int, loss: float) -> None:
        self._done.append((time.monotonic(), step))
        if math.isfinite(loss):
            self._losses.append(loss)
        if not self._is_due():
            return
        while len(self._done) > 2 and self._done[0][0] < self._done[-1][0] - _WINDOW_S:
            self._done.popleft()
        (start, first), (now, last) = self._done[0], self._done[-1]
        rate = (last - first) / max(now - start, 1e-9)
        loss = fmean(self._losses) if self._losses else math.nan
        self._losses = []
        speed = f"{rate * self._config.batch:,.0f}/s  loss {loss:.3f}{self._details}"
        self._report(step, f"{speed}  {_time_left(self._total - step, rate)}")

    def _is_due(self) -> bool:
        every_s = LOG_S if self._bar is None else TERMINAL_S
        return time.monotonic() - self._reported >= every_s

    def _report(self, step: int, words: str) -> None:
        self._reported = time.monotonic()
        place = f"epoch {step / self._epoch_steps:.1f}/{self._config.epochs}"
        if self._bar is None or self._task is None:
            self.say(f"{place}  step {step:,} of {self._total:,}  {words}")
            return
        self._bar.update(self._task, completed=step, words=words, place=place)


def headline(outcome: Outcome, out: Path) -> str:
    """Describe how a run ended: the last epoch, then the best one, chosen on the test set."""
    if outcome.ending == "stopped":
        return f"stopped at step {outcome.step}, saved in {out}; the same command continues"
    if not outcome.evaluations:
        return f"{outcome.ending} after {outcome.step} steps, without evaluations; {out}"
    last, best = outcome.evaluations[-1], best_of(outcome.evaluations)
    assert best is not None
    what, best_score = "accuracy", f"{best.accuracy:.2%}"
    if last.correct is None:
        what, best_score = "scores", f"loss {best.loss:.4g}"
    words = (
        f"{what} after the last epoch: {last.describe()}; "
        f"best {best_score} after epoch {best.epoch}, chosen on the test set; {out}"
    )
    return f"nothing left to do. {words}" if outcome.ending == "already finished" else words


def summary(outcome: Outcome, out: Path) -> dict[str, Any]:
    """Return the same as data; ``last`` and ``best`` are None before the first evaluation."""
    found = outcome.evaluations
    best = best_of(found)
    return {
        "run": str(out),
        "ending": outcome.ending,
        "step": outcome.step,
        "last": _as_data(found[-1]) if found else None,
        "best_on_test_set": _as_data(best) if best else None,
    }


def _as_data(found: Evaluation) -> dict[str, Any]:
    """Return an evaluation as JSON, without NaN: JSON does not have it."""
    return asdict(found) | {"accuracy": None if found.correct is None else found.accuracy}


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.fields[place]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:.1f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
        console=console,
        refresh_per_second=2,
    )


def _time_left(items: int, rate: float) -> str:
    """Describe how long the rest takes at this rate, in items per second."""
    return f"{timedelta(seconds=round(items / rate))} left" if rate > 0 else ""


def _details(record: Record) -> str:
    active = f"  active {record['active']:.3f}" if "active" in record else ""
    accuracy = f"  accuracy {record['accuracy']:.1%}" if "accuracy" in record else ""
    return f"{accuracy}{active}"


def _evaluation(record: Record, epochs: int) -> str:
    best = record["best_on_test_set"]
    if "accuracy" not in record:
        return (
            f"epoch {record['epoch']}/{epochs}: test loss {record['loss']:.4g}; best so far "
            f"{best['loss']:.4g} (epoch {best['epoch']})"
        )
    return (
        f"epoch {record['epoch']}/{epochs}: test accuracy {record['accuracy']:.2%} "
        f"({record['correct']} of {record['count']}), loss {record['loss']:.3f}; best so far "
        f"{best['accuracy']:.2%} (epoch {best['epoch']})"
    )
