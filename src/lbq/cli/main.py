"""``lbq COMMAND``: which command, and what its end looks like.

Exit codes: 0 done, 1 a mistake that we can explain, 2 a wrong command line, 70 a crash, 128 +
signal if a signal ended it (143 when a scheduler sent SIGTERM). A mistake has no traceback;
``--debug`` shows it.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from rich.console import Console

from lbq import __version__
from lbq.cli import doctor, evaluate, export, lower, report, train
from lbq.errors import LBQError
from lbq.train.world import is_first_process, is_lost_contact

MISTAKE, USAGE, CRASH, INTERRUPTED = 1, 2, 70, 130

Command = Callable[[Sequence[str]], int]

COMMANDS: dict[str, tuple[Command, str]] = {
    "train": (train.run, "train a recipe, or continue where it was left"),
    "eval": (evaluate.run, "count the right answers of a trained, lowered or exported network"),
    "lower": (lower.run, "take a trained network out of training: integers, in one file"),
    "export": (export.run, "write it for other engines: ONNX, torch alone, NIR"),
    "report": (report.run, "write what runs came to as one HTML page"),
    "doctor": (doctor.run, "look at this machine: what was found, what to do about the rest"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if words is None else list(words)
    errors = Console(stderr=True, soft_wrap=True)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    if not words or words[0] in ("-h", "--help"):
        Console(soft_wrap=True).print(_usage(), markup=False, highlight=False)
        return 0 if words else USAGE
    if words[0] == "--version":
        Console().print(__version__, highlight=False)
        return 0
    if words[0] not in COMMANDS:
        errors.print(f"there is no command {words[0]!r}\n\n{_usage()}", markup=False)
        return USAGE
    command, _ = COMMANDS[words[0]]
    try:
        return command(words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        is_plain = isinstance(error, LBQError) or is_lost_contact(error)
        if is_plain and "--debug" not in words:
            errors.print(_explain(error), markup=False, highlight=False)
        else:
            traceback.print_exc()
        return MISTAKE if isinstance(error, LBQError) else CRASH


def _explain(error: Exception) -> str:
    """Say what went wrong; processes other than the first add who they are, in one line."""
    if is_first_process():
        return f"error: {error}"
    return f"process {os.environ['RANK']}: {str(error).splitlines()[0]}"


def _usage() -> str:
    lines = [f"  lbq {name:8} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage:",
            *lines,
            "  lbq --version",
            "",
            "`lbq COMMAND --help` tells more. Exit codes: 0 done, 1 a mistake, 2 a wrong command",
            "line, 70 a crash, 143 stopped by a scheduler with everything saved.",
        ]
    )
