"""``lbq COMMAND``: which command, and what its end looks like.

Exit codes: 0 done, 1 a mistake that we can explain, 2 a wrong command line, 70 a crash, 128 +
signal if a signal ended it (143 when a scheduler sent SIGTERM, 141 when nobody reads on). A
mistake is one line on the standard error; ``--debug`` shows its traceback.
"""

import difflib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from lbq import __version__
from lbq.cli import (
    bench_command,
    completion_command,
    doctor_command,
    eval_command,
    export_command,
    lower_command,
    report_command,
    train_command,
)
from lbq.cli.args import UsageError
from lbq.cli.cli_errors import explain
from lbq.cli.terminal import Console, printable, write_messages
from lbq.train.distributed import is_connection_error, is_first_process

MISTAKE, USAGE, CRASH, INTERRUPTED, UNREAD = 1, 2, 70, 130, 141

Command = Callable[[Sequence[str]], int]

COMMANDS: dict[str, tuple[Command, str]] = {
    "train": (train_command.run, "train a recipe, or continue where it was left"),
    "eval": (eval_command.run, "count the right answers of a trained, lowered or exported network"),
    "lower": (lower_command.run, "take a trained network out of training: integers, in one file"),
    "export": (export_command.run, "write it for other engines: ONNX, torch alone, NIR"),
    "bench": (bench_command.run, "time every layer of an integer network on this machine"),
    "report": (report_command.run, "write what runs came to as one HTML page"),
    "doctor": (doctor_command.run, "check this machine: what was found, how to fix the rest"),
    "completion": (completion_command.run, "print a script that lets the shell finish words"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if words is None else list(words)
    errors = Console(stderr=True, soft_wrap=True)
    write_messages()
    if not words or words[0] in ("-h", "--help"):
        Console(soft_wrap=True).print(_usage(), markup=False, highlight=False)
        return 0 if words else USAGE
    if words[0] == "--version":
        Console().print(__version__, highlight=False)
        return 0
    if words[0] not in COMMANDS:
        errors.print(f"error: {_no_command(words[0])}", markup=False, highlight=False)
        return USAGE
    command, _ = COMMANDS[words[0]]
    try:
        return command(words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except Exception as error:
        words_for_it = str(error) if is_connection_error(error) else explain(error)
        if words_for_it is None or "--debug" in words:
            sys.stderr.write(printable(traceback.format_exc()))
        else:
            errors.print(_signed(words_for_it), markup=False, highlight=False)
        if isinstance(error, UsageError):
            return USAGE
        return CRASH if explain(error) is None else MISTAKE


def _signed(words: str) -> str:
    """Say who complains: processes other than the first add who they are, in one line."""
    if is_first_process():
        return f"error: {words}"
    return f"process {os.environ['RANK']}: {words.splitlines()[0]}"


def _no_command(word: str) -> str:
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    guess = f"; did you mean `lbq {close[0]}`?" if close else ";"
    return f"there is no command {word!r}{guess} `lbq --help` lists all"


def _usage() -> str:
    lines = [f"  lbq {name:10}  {what}" for name, (_, what) in COMMANDS.items()]
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
