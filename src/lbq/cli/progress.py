"""Progress of commands and runs: a bar or a spinner in a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
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
from lbq.train.engine import Outcome
from lbq.train.evaluation import Evaluation, best_of
from lbq.train.metrics import Record
from lbq.train.train_config import TrainConfig

Item = TypeVar("Item")

EVERY_S = 10.0
"""Seconds between two lines where there is no terminal."""


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
    """Yield a function that shows how many of how many are done."""
    console = Console(stderr=True, soft_wrap=True) if console is None else console
    if console.is_terminal:
        columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_S and done < total:
            last = time.monotonic()
            console.print_text(f"{what}: {done} of {total}")

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
    """Shows the records of a run as they come.

    Args:
        config: how it is trained.
        console: the standard output by default.
    """

    def __init__(self, config: TrainConfig, console: Console | None = None) -> None:
        self._console = Console(soft_wrap=True) if console is None else console
        self._config = config
        self._bar = _bar(self._console) if self._console.is_terminal else None
        self._task = None
        self._status = None

    def wait(self, what: str) -> None:
        """Show what happens before the first record."""
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
        elif record["event"] == "train":
            self._move(record)
        elif record["event"] == "evaluation":
            self.say(_evaluation(record, self._config.epochs))
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
        verb = "training" if record["event"] == "start" else f"continuing at step {record['step']}"
        name = record.get("recipe", record.get("model"))
        self.say(
            f"{verb}: {name}, {record['parameters']:,} parameters, "
            f"{record['total_steps']:,} steps of {self._config.batch} samples, "
            f"{record['processes']} x {record['device']} ({record['threads']} threads), "
            f"{record['precision']}"
        )
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=record["total_steps"], completed=record["step"], words="", place=""
            )

    def _move(self, record: Record) -> None:
        place = f"epoch {record['epoch']:.1f}/{self._config.epochs}"
        if self._bar is None or self._task is None:
            self.say(f"{place}  {_metrics(record)}")
            return
        self._bar.update(self._task, completed=record["step"], words=_metrics(record), place=place)


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
    """Return an evaluation as JSON; without NaN, which JSON does not have."""
    return asdict(found) | {"accuracy": None if found.correct is None else found.accuracy}


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.fields[place]}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:.1f} %  {task.fields[words]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
        speed_estimate_period=120,
    )


def _metrics(record: Record) -> str:
    active = f"  active {record['active']:.3f}" if "active" in record else ""
    accuracy = f"  accuracy {record['accuracy']:.1%}" if "accuracy" in record else ""
    return f"{record['samples_per_s']:,.0f}/s  loss {record['loss']:.3f}{accuracy}{active}"


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
