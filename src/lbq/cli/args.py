"""The words behind a command: read by tyro, with examples in their help and mistakes in a line."""

import io
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TypeVar

import tyro

Arguments = TypeVar("Arguments")

_FRAME, _RULE = " │╭╮╰╯|+", "─-"
_GUESS = "Perhaps you meant: "


class UsageError(Exception):
    """The words of a command are not what it takes: exit code 2."""


def read(
    kind: type[Arguments],
    words: Sequence[str],
    *,
    command: str,
    examples: Mapping[str, str],
    default: Arguments | None = None,
) -> Arguments:
    """Read the words behind a command, or tell its help and leave.

    Args:
        kind: a dataclass with a field per argument.
        words: what the user wrote behind the command.
        command: what he wrote before: "lbq eval".
        examples: lines that work, and what each is for.
        default: where the fields that are not named come from.
    """
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint), _plain_if_asked():
            text = describe(kind, examples)
            if default is None:
                return tyro.cli(kind, prog=command, args=list(words), description=text)
            return tyro.cli(kind, prog=command, args=list(words), description=text, default=default)
    except SystemExit as end:
        if not end.code:
            raise
        raise UsageError(
            f"{in_one_line(complaint.getvalue())}; `{command} --help` lists what it takes"
        ) from None


def check_count(flag: str, value: int | None, *, at_least: int = 0) -> None:
    """Refuse a number of things that there cannot be."""
    if value is not None and value < at_least:
        raise UsageError(f"{flag} must be at least {at_least}, got {value}")


def describe(kind: type[object], examples: Mapping[str, str]) -> str:
    """Put examples below what a command's docstring says."""
    width = max(len(line) for line in examples)
    lines = [f"  {line:{width}}  {what}" for line, what in examples.items()]
    first = (kind.__doc__ or "").strip().split("\n\n")[0]
    return "\n".join([first, "", "examples:", *lines])


def in_one_line(box: str) -> str:
    """Take the complaint, and the first guess at what was meant, out of the box around them.

    tyro explains at length, for people at a terminal; a log wants a line, and the help is one
    command away.
    """
    paragraphs: list[list[str]] = [[]]
    for row in (row.strip(_FRAME) for row in box.splitlines()[1:]):
        if row and not row.strip(_RULE):
            paragraphs.append([])
        else:
            paragraphs[-1].append(row)
    joined = (" ".join(" ".join(rows).split()).rstrip(".") for rows in paragraphs)
    complaint, *rest = filter(None, joined)
    guess = next((words for words in rest if words.startswith(_GUESS)), None)
    if guess is None:
        return complaint
    return f"{complaint}; did you mean {guess.removeprefix(_GUESS).split()[0]}?"


@contextmanager
def _plain_if_asked() -> Generator[None]:
    """Take the colours out of tyro's help where NO_COLOR asks for it: tyro does not look."""
    if not os.environ.get("NO_COLOR"):
        yield
        return
    plain, out = io.StringIO(), sys.stdout
    try:
        with redirect_stdout(plain):
            yield
    finally:
        out.write(plain.getvalue())
