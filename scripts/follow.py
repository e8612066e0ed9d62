"""Follow a page as its reader would: run its code in order, and compare what it prints.

    python scripts/follow.py README.md docs/tour.md

Blocks marked ``python`` are one program, those marked ``sh`` run in a shell, and a block marked
``text`` after one of them is its output: words exactly, numbers within 5 %, since other processors
round differently; ``...`` stands for anything. An HTML comment that begins with "runs first" holds
code that a page takes for granted. Every page gets its own folder.

sybil and pytest-markdown-docs run pages too, in pytest; a new user's environment has no pytest.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

TOLERANCE = 0.05
_BLOCK = re.compile(
    r"^<!-- runs first\n(?P<before>.*?)^-->$|^```(?P<kind>python|sh|text)\n(?P<body>.*?)^```$",
    re.M | re.S,
)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


class Block(NamedTuple):
    """Some code or output of a page."""

    kind: str
    body: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that run or are compared."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        if found["before"] is not None:
            yield Block("python", found["before"], line)
        else:
            yield Block(found["kind"], found["body"], line)


def follow(page: Path, *, with_shell: bool = True) -> int:
    """Run a page in the current folder; return how many of its outputs were compared.

    Args:
        page: the page.
        with_shell: type ``sh`` blocks into a shell too, or leave them and their outputs out.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    told, compared = None, 0
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        if block.kind == "python":
            told = _run_python(block, names, place)
        elif block.kind == "sh":
            told = _run_shell(block.body) if with_shell else None
        elif told is not None:
            check(told, block.body, place)
            compared += 1
    return compared


def check(told: str, expected: str, place: str) -> None:
    """Compare an output with the one on the page."""
    pieces, wanted = _NUMBER.split(expected), _NUMBER.findall(expected)
    pattern = r"(-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)".join(map(_loosely, pieces))
    found = re.fullmatch(rf"\s*{pattern}\s*", told, re.S)
    is_close = found is not None and all(
        abs(_value(a) - _value(b)) <= TOLERANCE * abs(_value(b))
        for a, b in zip(found.groups(), wanted, strict=True)
    )
    if not is_close:
        raise SystemExit(f"{place}: the page says\n{expected}\nbut this was told:\n{told}")


def _loosely(words: str) -> str:
    """Match words with any blanks between them, and anything for three points."""
    pieces = (re.escape(piece) for piece in words.split("..."))
    return ".*?".join(re.sub(r"(?:\\?\s)+", r"\\s*", piece) for piece in pieces)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _run_python(block: Block, names: dict[str, Any], place: str) -> str:
    told = io.StringIO()
    with redirect_stdout(told):
        exec(compile(block.body, place, "exec"), names)  # noqa: S102 -- our own pages
    return told.getvalue()


def _run_shell(body: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c", body]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603
    return done.stdout.decode()


def bring_data(folder: Path) -> None:
    """Link CIFAR-10 to the place where its hub id is looked up first, to download nothing."""
    if (there := os.environ.get("LBQ_DATA")) and (Path(there) / "cifar10").is_dir():
        (folder / "uoft-cs").mkdir()
        (folder / "uoft-cs" / "cifar10").symlink_to(Path(there) / "cifar10")


def main() -> None:
    """Follow the pages named on the command line."""
    for page in (Path(name).resolve() for name in sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            bring_data(Path(folder))
            os.chdir(folder)
            print(f"{page.name}: {follow(page)} outputs are those of the page", flush=True)
            os.chdir(page.parent)


if __name__ == "__main__":
    main()
