"""Files of a data set, in a folder or in a zip file: the same names, the same bytes.

Nothing is ever extracted, so no name in an archive can reach outside of it. What a member claims to
hold is checked before it is read: a small archive can claim terabytes.
"""

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lbq.errors import CorruptSample, FormatError

MAX_BYTES = 1 << 30
"""Larger than any recording of the known sets."""
MAX_RATIO = 200
"""Recordings shrink to a half or a tenth; deflate reaches 1000 on zeros."""

_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""Damaged, encrypted, or packed in an unknown way."""


@dataclass(frozen=True)
class Archive:
    """A folder or a zip file with the files of a data set."""

    path: Path
    sizes: dict[str, int]
    """Bytes of every file, by its path inside, in the order of these paths."""

    def read(self, name: str) -> bytes:
        """Read one file whole.

        Raises:
            CorruptSample: if it cannot be read, is too large, or its checksum is wrong.
        """
        if self.sizes[name] > MAX_BYTES:
            raise CorruptSample(f"{name} has {self.sizes[name]} bytes, more than {MAX_BYTES}")
        try:
            if self.path.is_dir():
                return (self.path / name).read_bytes()
            check_ratio(self._zip.getinfo(name))
            return self._zip.read(name)
        except _UNREADABLE as error:
            raise CorruptSample(f"{name} in {self.path} cannot be read: {error}") from error

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path)

    def named(self, *suffixes: str) -> list[str]:
        """Return the files whose names end so."""
        return [name for name in self.sizes if name.endswith(suffixes)]

    def digest(self, *suffixes: str) -> str:
        """Hash the bytes of the files whose names end so, and their names; a zip file as a whole.

        Names, sizes and times are not enough: a file can be rewritten and keep all of them.
        """
        if not self.path.is_dir():
            return _sha256(self.path)
        total = hashlib.sha256()
        for name in self.named(*suffixes):
            total.update(f"{_sha256(self.path / name)} {name}\0".encode("utf-8", "surrogateescape"))
        return total.hexdigest()


def open_archive(source: str) -> Archive:
    """List a folder or a zip file."""
    path = Path(source)
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file())
        sizes = {file.relative_to(path).as_posix(): file.stat().st_size for file in files}
    elif path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            members = [member for member in file.infolist() if not member.is_dir()]
        sizes = {member.filename: member.file_size for member in members}
    else:
        raise FormatError(f"{source} is neither a folder nor a zip file")
    return Archive(path, dict(sorted(sizes.items())))


def check_ratio(member: zipfile.ZipInfo) -> None:
    """Refuse a member that claims to unpack to far more than it takes.

    Raises:
        CorruptSample: if it does.
    """
    if member.file_size > MAX_RATIO * max(member.compress_size, 1):
        raise CorruptSample(
            f"{member.filename} claims {member.file_size} bytes in {member.compress_size}: "
            "not a recording"
        )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorruptSample(f"{path} cannot be read: {error.strerror}") from error
