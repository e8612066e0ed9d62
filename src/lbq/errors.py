"""Exceptions. Messages state what was expected, what was received, and what to do.

All derive from :class:`LBQError`, and from a builtin such as ``ValueError`` or ``RuntimeError``.
"""

import shlex
from importlib import metadata


class LBQError(Exception):
    """Base of all exceptions of this library.

    Example:
        >>> try:
        ...     lbq.BurstLIF(max_level=0)
        ... except lbq.LBQError as error:
        ...     print(error)
        max_level must lie in 1..255, got 0; levels are stored in one byte
    """


class ShapeError(LBQError, ValueError):
    """A tensor has the wrong shape."""


class TimeError(LBQError, ValueError):
    """A sequence has no timesteps, or the wrong number of them."""


class LevelError(LBQError, ValueError):
    """A level is fractional, out of range, or passed instead of a burst or current."""


class StepError(LBQError, ValueError):
    """A step is not a positive finite number."""


class ParameterError(LBQError, ValueError):
    """An argument lies outside its range, or two arguments contradict each other."""


class NonFiniteError(LBQError, RuntimeError):
    """A NaN or an infinity reached a neuron."""


class FormatError(LBQError, ValueError):
    """A file does not have the expected format."""


class CountError(LBQError, RuntimeError):
    """A network contains operations that cannot be counted."""


class ImplementationError(LBQError, RuntimeError):
    """The requested implementation or backend cannot run these arguments."""


class CorruptSample(LBQError, ValueError):  # noqa: N818 -- the noun is what a user looks for
    """An image or a recording cannot be decoded; the message names it."""


class MissingExtraError(LBQError, ImportError):
    """An optional package is needed; the message holds the line that installs it."""


def install_command(extra: str) -> str:
    """Return the line that installs the packages of an extra, with their oldest releases.

    It names the packages, not lbq, so that it is right for a wheel and for a copy of the
    repository.
    """
    try:
        needs = metadata.requires("lbq") or []
    except metadata.PackageNotFoundError:  # the source is only on the import path
        return f"install what pyproject.toml lists as {extra}"
    packages = [need.split(";")[0].strip() for need in needs if f'extra == "{extra}"' in need]
    return f"pip install {shlex.join(packages)}"


class RecipeError(LBQError, ValueError):
    """A recipe, or its file, is invalid."""


class RunError(LBQError, RuntimeError):
    """A run cannot start, continue or finish in its folder."""


class LoweringError(LBQError, ValueError):
    """A network cannot be lowered or converted; the message names the module."""


class BoundError(LBQError, ValueError):
    """An integer network could overflow, or states a bound that does not hold."""
