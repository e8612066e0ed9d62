"""Code, versions and data of a run, compared when it is resumed."""

import hashlib
import platform
import subprocess
from collections.abc import Collection
from functools import cache
from importlib import metadata
from pathlib import Path

import torch
from torch import nn

from lbq.config_io import Document, differences, digest
from lbq.errors import RunError

_PACKAGE = Path(__file__).parents[1]
_COMPARED = (
    "recipe",
    "config",
    "structure",
    "loss",
    "metrics",
    "teacher",
    "code",
    "data",
    "versions",
)
_COMPARED_IF_STORED = ("loss_code", "metrics_code")
"""Runs of version 0.2 have no digests of loss and metrics: their names are compared."""

_NO_SETTINGS = ("training", "preprocessing")


@cache
def code_digest() -> str:
    """Return the SHA-256 of this library's files, committed or not."""
    total = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in (".py", ".so") and path.is_file():
            total.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@cache
def git_commit() -> str | None:
    """Return the commit of this checkout, ``-dirty`` if edited; None without one."""
    command = ["git", "-C", str(_PACKAGE), "describe", "--always", "--dirty", "--abbrev=40"]
    tracked = ["git", "-C", str(_PACKAGE), "ls-files", "--error-unmatch", "__init__.py"]
    try:
        subprocess.run(tracked, capture_output=True, check=True, timeout=20)  # noqa: S603
        done = subprocess.run(command, capture_output=True, check=True, timeout=20)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode().strip()


def structure_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a model's modules, their settings and the shapes of its tensors.

    Settings are plain attributes: numbers, text and tuples of them. What ``forward`` does with the
    modules is not part of it, nor are the values of tensors, nor ``preprocessing``, which describes
    the data and may be added after training.
    """
    modules = [
        [path, type(module).__qualname__, _settings(module)]
        for path, module in model.named_modules(remove_duplicate=False)
    ]
    tensors = [
        [name, str(tensor.dtype), list(tensor.shape)] for name, tensor in model.state_dict().items()
    ]
    frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
    return digest([modules, tensors, frozen])


def _settings(module: nn.Module) -> dict[str, str]:
    return {
        name: repr(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in _NO_SETTINGS and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value is None or isinstance(value, bool | int | float | str)


def provenance(data_digest: str) -> Document:
    """Describe code, versions and data as a document."""
    return {
        "code": code_digest(),
        "commit": git_commit(),
        "data": data_digest,
        "versions": {
            "lbq": metadata.version("lbq"),
            "numpy": metadata.version("numpy"),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }


def check_same_run(then: Document, now: Document, *, allowed: Collection[str]) -> list[str]:
    """Raise RunError if a run is resumed with another recipe, code, version or data.

    The path of the data may change, and the commit is not compared: the code digest is stricter.

    Args:
        then: metadata of the checkpoint.
        now: metadata of this attempt.
        allowed: keys that may differ, such as ``recipe.epochs``; includes the keys inside them.

    Returns:
        One line for every difference that was allowed.
    """
    if ("config" in then) != ("config" in now):
        kinds = "a recipe", "lbq.fit"
        raise RunError(
            f"the folder holds a run of {kinds['config' in then]}, which {kinds['config' in now]} "
            f"cannot continue; choose another folder (--out)"
        )
    compared = [*_COMPARED, *(key for key in _COMPARED_IF_STORED if key in then)]
    before, after = ({key: metadata.get(key) for key in compared} for metadata in (then, now))
    is_moved = before["data"] == after["data"]
    changed = {
        key: f"{key}: {old!r} -> {new!r}"
        for key, old, new in differences(before, after)
        if not (is_moved and key == "recipe.data.source")
    }
    rejected = [
        key
        for key in changed
        if not any(key == each or key.startswith(each + ".") for each in allowed)
    ]
    if rejected:
        listed = "\n  ".join(changed[key] for key in rejected)
        raise RunError(
            f"the run was started with other settings:\n  {listed}\nrestore them, "
            f"choose another folder (--out), or allow them: --allow-changed {' '.join(rejected)}, "
            f"in Python RunOptions(allow_changed={tuple(rejected)!r})"
        )
    return list(changed.values())
