"""What a person sees of a long command: a bar or a spinner in a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lbq.cli.terminal import Console

Item = TypeVar("Item")

EVERY_S = 10.0
"""Seconds between two lines where there is no terminal."""


def follow(
    items: Iterable[Item], *, total: int, what: str, console: Console | None = None
) -> Iterator[Item]:
    """Yield the items, and show how many of them are done, on the standard error."""
    console = Console(stderr=True, soft_wrap=True) if console is None else console
    if console.is_terminal:
        columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(items, total=total)
        return
    last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last >= EVERY_S and done < total:
            last = time.monotonic()
            console.print(f"{what}: {done} of {total}", markup=False, highlight=False)


@contextmanager
def counting(what: str, console: Console | None = None) -> Generator[Callable[[int, int], None]]:
    """Yield a function that is told how many of how many are done, and shows it."""
    console = Console(stderr=True, soft_wrap=True) if console is None else console
    if console.is_terminal:
        columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY_S and done < total:
            last = time.monotonic()
            console.print(f"{what}: {done} of {total}", markup=False, highlight=False)

    yield tell


@contextmanager
def waiting(what: str, console: Console | None = None) -> Generator[None]:
    """Say what the next seconds are for, on the standard error."""
    console = Console(stderr=True, soft_wrap=True) if console is None else console
    if console.is_terminal:
        with console.status(what):
            yield
        return
    console.print(what, markup=False, highlight=False)
    yield
