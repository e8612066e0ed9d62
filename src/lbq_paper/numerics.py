"""What decides the numbers of a run besides its recipe: the files that compute them."""

import hashlib
from functools import cache
from pathlib import Path

import lbq
from lbq.errors import RunError

PACKAGES = ("functional", "kernels", "neurons", "models", "data", "train")
"""The rooms that a number passes on its way; the others only watch, ask or print."""

NATIVE = ("include/lbq.h", "src", "torch")
"""The parts of ``native/`` that training runs on; the rest of it reads and runs what came out."""

NAMES_ONLY = "train/recipes.py"
"""Gives recipes names; what a recipe says is hashed with the recipe itself."""


@cache
def numerics_digest() -> str:
    """Return the SHA-256 of every file that decides what a recipe computes, committed or not."""
    package = Path(lbq.__file__).parent
    return digest_of(package, package.parents[1] / "native")


def digest_of(package: Path, native: Path) -> str:
    """Hash names and contents of the files, so that a moved line counts and a moved folder not."""
    if not native.is_dir():
        raise RunError(
            f"{native} is missing: experiments are named after the sources of the kernels too; run "
            f"lbq_paper from a checkout (pip install -e .)"
        )
    found = [(f"lbq/{part}", package / part, (".py", ".json")) for part in PACKAGES]
    found += [(f"native/{part}", native / part, (".cc", ".h")) for part in NATIVE]
    total = hashlib.sha256()
    for name, folder, suffixes in found:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            entry = f"{name}/{path.relative_to(folder).as_posix()}"
            if path.suffix in suffixes and entry != f"lbq/{NAMES_ONLY}":
                total.update(entry.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
