"""Files that survive a kill, a full disk and a power cut: whole and old, or whole and new."""

import errno
import os
import secrets
import shutil
from pathlib import Path

_TEMPORARY = ".tmp"


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a file in one instant: at any moment ``path`` holds all of the old or all of the new.

    The temporary file lies in the same folder (a rename across devices is a copy), is flushed to
    the disk before the rename, and the folder after it: otherwise a power cut can keep the rename
    and lose the contents. On any failure the temporary file is removed and the old one is intact.
    Its name is random: several processes may write one path, and the last rename wins. Permissions
    are those of the umask.
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
        if isinstance(error, OSError) and error.filename is None:  # a failing write has no name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush what a folder knows of its files: creations, renames, removals.

    Windows opens no folders and keeps a journal of renames itself: nothing to do there.
    """
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_space(folder: Path, num_bytes: int) -> None:
    """Raise ``OSError`` before anything is written where the disk cannot hold that many bytes."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {num_bytes:,} bytes wanted (twice the file), "
            f"{free:,} free",
            str(folder),
        )


def remove_temporary_files(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for leftover in folder.glob(f".*{_TEMPORARY}"):
        leftover.unlink(missing_ok=True)
