"""Command-line arguments: parsed by tyro, examples in the help, errors in one line."""

import io
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from difflib import SequenceMatcher
from typing import TypeVar

import tyro

from lbq.errors import ParameterError

Arguments = TypeVar("Arguments")

_FRAME, _RULE = " │╭╮╰╯|+", "─-"
_GUESS = "Perhaps you meant: "


class UsageError(ParameterError):
    """The arguments of a command are wrong: exit code 2."""


def read(
    kind: type[Arguments],
    words: Sequence[str],
    *,
    command: str,
    examples: Mapping[str, str],
    default: Arguments | None = None,
) -> Arguments:
    """Parse the arguments of a command, or print its help and exit.

    Args:
        kind: a dataclass with a field per argument.
        words: the arguments.
        command: the command: "lbq eval".
        examples: command lines, and the purpose of each.
        default: values of the fields that are not given.
    """
    message = io.StringIO()
    try:
        with redirect_stderr(message), _readable_help():
            text = describe(kind, examples)
            if default is None:
                return tyro.cli(kind, prog=command, args=list(words), description=text)
            return tyro.cli(kind, prog=command, args=list(words), description=text, default=default)
    except SystemExit as end:
        if not end.code:
            raise
        raise UsageError(
            f"{in_one_line(message.getvalue())}; `{command} --help` lists what it takes"
        ) from None


def check_count(flag: str, value: int | None, *, at_least: int = 0) -> None:
    """Raise UsageError unless the value is at least ``at_least``."""
    if value is not None and value < at_least:
        raise UsageError(f"{flag} must be at least {at_least}, got {value}")


def describe(kind: type[object], examples: Mapping[str, str]) -> str:
    """Return the first paragraph of a command's docstring, and its examples."""
    width = max(len(line) for line in examples)
    lines = [f"  {line:{width}}  {what}" for line, what in examples.items()]
    first = (kind.__doc__ or "").strip().split("\n\n")[0]
    return "\n".join([first, "", "examples:", *lines])


def in_one_line(box: str) -> str:
    """Extract the message and the closest suggestion from tyro's box.

    A log wants one line; `--help` shows the rest.
    """
    paragraphs: list[list[str]] = [[]]
    for row in (row.strip(_FRAME) for row in box.splitlines()[1:]):
        if row and not row.strip(_RULE):
            paragraphs.append([])
        else:
            paragraphs[-1].append(row)
    joined = (" ".join(" ".join(rows).split()).rstrip(".") for rows in paragraphs)
    message, *rest = filter(None, joined)
    guess = next((words for words in rest if words.startswith(_GUESS)), None)
    if guess is None:
        return message
    words = guess.removeprefix(_GUESS).split()
    flags = [word for word in words if word.startswith("--")] or words[:1]
    given = next((word.rstrip(",") for word in message.split() if word.startswith("--")), "")
    closest = max(flags, key=lambda flag: SequenceMatcher(None, given, flag).ratio())
    return f"{message}; did you mean {closest}?"


@contextmanager
def _readable_help() -> Generator[None]:
    """Leave None out of tyro's help, since nobody types it, and colours if NO_COLOR is set."""
    out = sys.stdout
    text = _HelpText(is_coloured=out.isatty() and not os.environ.get("NO_COLOR"))
    try:
        with redirect_stdout(text):
            yield
    finally:
        out.write(without_none(text.getvalue()))


class _HelpText(io.StringIO):
    """Text that tyro takes for a terminal if colours are wanted; tyro ignores NO_COLOR."""

    def __init__(self, *, is_coloured: bool) -> None:
        super().__init__()
        self._is_coloured = is_coloured

    def isatty(self) -> bool:
        return self._is_coloured


def without_none(text: str) -> str:
    """Write ``{None}|INT`` as ``INT``; columns and frames stay where they are."""
    for none, short in (("{None}|", ""), ("{None,", "{")):
        pad = " " * (len(none) - len(short))
        pattern = re.escape(none) + r"(.*?)(?=  | [│|]|$)"
        text = re.sub(pattern, lambda found, s=short, p=pad: s + found[1] + p, text, flags=re.M)
    words = r"\(default:([ │|]*\n[ │|]*| )None\)"  # tyro may break the line
    return re.sub(words, lambda found: re.sub(r"[^\s│|]", " ", found[0]), text)
