"""A recipe file: the user's own Python code that builds a model and its data.

Only a path that was typed on the command line, or passed by a caller, is loaded: no file, and no
checkpoint, names code to load.
"""

import importlib.util
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lbq.errors import LBQError, RecipeError
from lbq.train.loss import check_metrics
from lbq.train.recipe import Recipe
from lbq.train.task import Task, join_data
from lbq.train.train_config import TrainConfig

SEED = 0
"""Seed of torch's generator while a recipe file is loaded, for the same initial weights always."""

_FUNCTION = "recipe"
_MODULE = "lbq_recipe_file"
"""Name of the module that a recipe file becomes."""
_REQUIRED = ("model", "train_data", "eval_data", "config")
_OPTIONAL = ("loss", "metrics", "teacher", "time_first")


def load_recipe_file(path: str | Path) -> Recipe | Task:
    """Load a Python file and call its function ``recipe()``.

    The function returns a :class:`lbq.train.Recipe`, or a dictionary of the arguments of
    :func:`lbq.fit` without ``out``: model, train_data, eval_data and config, and if needed loss,
    metrics, teacher and time_first. The file may import modules beside it. torch's generator is
    seeded with ``SEED`` before the file is loaded, and restored afterwards.

    Raises:
        RecipeError: with file and line for an error in the file.
    """
    path = Path(path)
    returns = f"it must return an lbq.train.Recipe, or a dictionary with {', '.join(_REQUIRED)}"
    made = load_function(path, _FUNCTION, returns=returns)
    return made if isinstance(made, Recipe) else _read_task(made, path)


def load_function(path: str | Path, name: str, *, returns: str) -> Any:
    """Load a Python file, call a function in it without arguments and return the result.

    Args:
        path: path of the file.
        name: name of the function.
        returns: what it must return, as the end of a message.

    Raises:
        RecipeError: if there is no such file or function, and for an error in the file.
    """
    path = Path(path)
    if path.suffix != ".py":
        raise RecipeError(f"{path} is not a Python file: its name must end in .py")
    if not path.is_file():
        raise RecipeError(f"there is no file {path}")
    with torch.random.fork_rng([]), _importable(path.resolve().parent), _errors_of(path):
        torch.manual_seed(SEED)
        function = getattr(_execute(path), name, None)
        if callable(function):
            return function()
    raise RecipeError(f"{path} has no function {name}(); {returns}")


def _execute(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # where dataclasses and pickle look for it
    spec.loader.exec_module(module)
    return module


def _read_task(made: Any, path: Path) -> Task:
    """Check the result of ``recipe()``."""
    if not isinstance(made, dict):
        raise RecipeError(
            f"{_FUNCTION}() in {path} must return an lbq.train.Recipe or a dictionary of the "
            f"arguments of lbq.fit, got {type(made).__name__}"
        )
    found: dict[Any, Any] = made  # pyright: ignore[reportUnknownVariableType]
    missing = [key for key in _REQUIRED if key not in found]
    unknown = [str(key) for key in found if key not in _REQUIRED + _OPTIONAL]
    if missing or unknown:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has unknown keys: {', '.join(unknown)}"] if unknown else []
        raise RecipeError(
            f"the dictionary of {_FUNCTION}() in {path} {' and '.join(parts)}; it takes "
            f"{', '.join(_REQUIRED)}, and optionally {', '.join(_OPTIONAL)}"
        )
    kinds = {"model": nn.Module, "config": TrainConfig}
    if found.get("teacher") is not None:
        kinds["teacher"] = nn.Module
    for key, kind in kinds.items():
        if not isinstance(found[key], kind) or isinstance(found[key], Recipe):
            expected = "a torch.nn.Module" if kind is nn.Module else "an lbq.TrainConfig"
            raise RecipeError(
                f"{key} of {_FUNCTION}() in {path} must be {expected}, got "
                f"{type(found[key]).__name__}"
            )
    loss = found.get("loss")
    try:
        data = join_data(
            found["train_data"], found["eval_data"], time_first=bool(found.get("time_first"))
        )
        metrics = check_metrics(found.get("metrics"), loss)
    except LBQError as error:
        raise RecipeError(f"{_FUNCTION}() in {path}: {error}") from error
    teacher = found.get("teacher")
    return Task(found["model"], data, found["config"], loss, metrics, teacher=teacher)


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """Let the file import its siblings, as a script can."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


@contextmanager
def _errors_of(path: Path) -> Generator[None]:
    """Turn an error in the user's code into one message with file and line."""
    try:
        yield
    except SyntaxError as error:
        where = f"{error.filename or path}, line {error.lineno}"
        raise RecipeError(f"{where}: {type(error).__name__}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{_place(error, path)}: {type(error).__name__}: {error}") from error


def _place(error: BaseException, path: Path) -> str:
    """Find the innermost line of the user's code: in the file, or in one beside it."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).resolve().parent == path.resolve().parent:
            return f"{path.parent / Path(frame.filename).name}, line {frame.lineno}"
    return str(path)
