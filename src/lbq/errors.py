"""Complaints: each says what was expected, what came, and what to do.

All are children of :class:`LBQError`, so one ``except`` catches whatever this library objects to;
each is a ``ValueError`` or ``RuntimeError`` as well, for code that knows nothing of us.
"""


class LBQError(Exception):
    """The parent of every error this library raises on purpose.

    Example:
        >>> try:
        ...     lbq.BurstLIF(max_level=0)
        ... except lbq.LBQError as error:
        ...     print(error)
        max_level must lie in 1..255, got 0; levels are stored in one byte
    """


class ShapeError(LBQError, ValueError):
    """A tensor has other axes than the operation needs."""


class TimeError(LBQError, ValueError):
    """A sequence has no timestep, or a number of timesteps other than the promised one."""


class LevelError(LBQError, ValueError):
    """A level is fractional or out of range, or stands where a burst or current belongs."""


class StepError(LBQError, ValueError):
    """A step is not a positive finite number."""


class ParameterError(LBQError, ValueError):
    """A coefficient of a neuron lies outside its range, or two arguments contradict each other."""


class NonFiniteError(LBQError, RuntimeError):
    """A NaN or an infinity reached a neuron."""


class FormatError(LBQError, ValueError):
    """A file is not what it is said to be."""


class CountError(LBQError, RuntimeError):
    """A network does something that cannot be counted, and a wrong count would be worse."""


class ImplementationError(LBQError, RuntimeError):
    """An implementation was asked for by name and cannot run these arguments."""


class CorruptSample(LBQError, ValueError):  # noqa: N818 -- the noun is what a user looks for
    """An image or a recording cannot be decoded; the message names it."""


class LoaderError(LBQError, RuntimeError):
    """The processes that prepare batches died or hung more often than a run may bear."""


class MissingExtraError(LBQError, ImportError):
    """An optional package is needed; the message holds the line that installs it."""


class RecipeError(LBQError, ValueError):
    """A recipe, or a file that should hold one, says something that cannot be trained."""


class RunError(LBQError, RuntimeError):
    """A run cannot start, continue or finish in its folder as asked."""


class LoweringError(LBQError, ValueError):
    """A network does something that a lowered network cannot express; the message says where."""


class BoundError(LBQError, ValueError):
    """An integer network could overflow, or claims a bound that does not hold."""
