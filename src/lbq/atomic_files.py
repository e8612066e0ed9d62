"""Atomic file replacement."""

import errno
import os
import secrets
import shutil
from pathlib import Path

_TEMPORARY = ".tmp"


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a file atomically.

    Writes a temporary file with a random name in the same folder, flushes it, renames it and
    flushes the folder. After a kill, a full disk or a power cut, the file has either the old or the
    new contents. On failure the temporary file is removed. If several processes write one path, the
    last rename wins. Permissions follow the umask.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}{_TEMPORARY}")
    try:
        check_space(path.parent, 2 * len(data))
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a failed write has no file name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk; Windows cannot open folders and needs no flush."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_space(folder: Path, num_bytes: int) -> None:
    """Raise ``OSError`` if the disk has less free space than this."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {num_bytes:,} bytes needed (twice the file), "
            f"{free:,} free",
            str(folder),
        )


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files that a killed process left."""
    for leftover in folder.glob(f".*{_TEMPORARY}"):
        leftover.unlink(missing_ok=True)
