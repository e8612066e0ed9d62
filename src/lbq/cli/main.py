"""``lbq COMMAND``: choose the command, turn exceptions into messages and exit codes.

An error is one line on the standard error; ``--debug`` shows its traceback.
"""

import difflib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import torch

from lbq import __version__
from lbq.cli import (
    audit_command,
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
from lbq.cli.terminal import Console, printable, write_messages
from lbq.errors import LBQError
from lbq.train.distributed import is_connection_error, is_first_process

ERROR, USAGE, CRASH, INTERRUPTED, BROKEN_PIPE = 1, 2, 70, 130, 141

EXIT_CODES = {
    0: "done",
    ERROR: "an error that the message explains: missing data, a damaged file",
    USAGE: "a wrong command line",
    3: "lbq audit --fail-on: a finding fails or could not be checked",
    CRASH: "a crash",
    INTERRUPTED: "interrupted by Ctrl-C, and saved if it was training",
    BROKEN_PIPE: "the output pipe was closed",
    143: "stopped by a scheduler (SIGTERM), everything saved",
}

Command = Callable[[Sequence[str]], int]

COMMANDS: dict[str, tuple[Command, str]] = {
    "train": (train_command.run, "train a recipe, or continue where it stopped"),
    "eval": (eval_command.run, "compute the accuracy of a trained, lowered or exported network"),
    "lower": (lower_command.run, "convert a trained network to integers, in one file"),
    "export": (
        export_command.run,
        "write a network for other engines: ONNX, torch.export, NIR, C, Verilog",
    ),
    "bench": (bench_command.run, "time every layer of an integer network on this machine"),
    "report": (report_command.run, "write the results of runs as one HTML page"),
    "audit": (audit_command.run, "examine a spiking network of any library: leaks, costs, levels"),
    "doctor": (doctor_command.run, "check this machine: what was found, how to fix the rest"),
    "completion": (completion_command.run, "print a completion script for the shell"),
}

_ADVICE = {
    errno.EACCES: "check who owns it, or choose another place",
    errno.EPERM: "choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file in it",
    errno.EEXIST: "choose another name",
    errno.ENOSPC: "free some space, or choose another disk",
    errno.EDQUOT: "free some space, or choose another disk",
}
"""System errors that the user can fix. Any other, such as a broken disk, is a crash: a supervisor
may try again."""

_NO_MEMORY = ("can't allocate memory", "not enough memory", "CUDA out of memory")


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if words is None else list(words)
    errors = Console(stderr=True, soft_wrap=True)
    write_messages()
    if not words or words[0] in ("-h", "--help"):
        Console(soft_wrap=True).print_text(_usage())
        return 0 if words else USAGE
    if words[0] == "--version":
        Console().print_text(__version__)
        return 0
    if words[0] not in COMMANDS:
        errors.print_text(f"error: {_no_command(words[0])}")
        return USAGE
    command, _ = COMMANDS[words[0]]
    try:
        return command(words[1:])
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head`; without this Python reports it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        message = str(error) if is_connection_error(error) else explain(error)
        if message is None or "--debug" in words:
            sys.stderr.write(printable(traceback.format_exc()))
        else:
            errors.print_text(_with_rank(message))
        if isinstance(error, UsageError):
            return USAGE
        return CRASH if explain(error) is None else ERROR


def _with_rank(words: str) -> str:
    """Put the rank before messages of processes other than the first, in one line."""
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
            "`lbq COMMAND --help` lists its options.",
            "",
            "exit codes:",
            *(f"  {code:<4} {what}" for code, what in EXIT_CODES.items()),
        ]
    )


def explain(error: BaseException) -> str | None:
    """Return one line for an error that the user can fix; None for a crash."""
    if isinstance(error, LBQError | UsageError):
        return _in_one_line(str(error))
    if is_out_of_memory(error):
        return (
            "out of memory: take a smaller batch (--batch, and --accumulate to make up for it), "
            "a narrower network or fewer timesteps"
        )
    if isinstance(error, OSError) and error.errno in _ADVICE and error.filename is not None:
        reason = os.strerror(error.errno)
        return f"{os.fsdecode(error.filename)}: {reason}; {_ADVICE[error.errno]}"
    return None


def _in_one_line(words: str) -> str:
    lines = [" ".join(line.split()) for line in words.splitlines() if line.strip()]
    parts = [line if line.endswith((":", ";", ",", ".")) else f"{line};" for line in lines]
    return " ".join(parts).removesuffix(";")


def is_out_of_memory(error: BaseException) -> bool:
    """Recognise the errors of torch and Python for a tensor that does not fit."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
