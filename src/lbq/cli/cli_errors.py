"""Which errors a person can mend, and the one line that says how."""

import errno
import os

import torch

from lbq.cli.args import UsageError
from lbq.errors import LBQError

_MENDABLE = {
    errno.EACCES: "check who owns it, or choose another place",
    errno.EPERM: "choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file in it",
    errno.EEXIST: "choose another name",
    errno.ENOSPC: "make room, or choose another disk",
    errno.EDQUOT: "make room, or choose another disk",
}
"""What the system refuses for a reason that is the user's to change, and the advice. Anything else,
such as a broken disk, is a crash: a supervisor may try it again."""

_NO_MEMORY = ("can't allocate memory", "not enough memory", "CUDA out of memory")


def explain(error: BaseException) -> str | None:
    """Say in one line what a person did wrong or can mend; None if the error is our own."""
    if isinstance(error, LBQError | UsageError):
        return _in_one_line(str(error))
    if is_out_of_memory(error):
        return (
            "out of memory: take a smaller batch (--batch, and --accumulate to make up for it), "
            "a narrower network or fewer timesteps"
        )
    if isinstance(error, OSError) and error.errno in _MENDABLE and error.filename is not None:
        reason = os.strerror(error.errno)
        return f"{os.fsdecode(error.filename)}: {reason}; {_MENDABLE[error.errno]}"
    return None


def _in_one_line(words: str) -> str:
    lines = [" ".join(line.split()) for line in words.splitlines() if line.strip()]
    parts = [line if line.endswith((":", ";", ",", ".")) else f"{line};" for line in lines]
    return " ".join(parts).removesuffix(";")


def is_out_of_memory(error: BaseException) -> bool:
    """Recognise what torch and Python raise when a tensor does not fit."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
