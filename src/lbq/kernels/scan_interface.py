"""Arguments, results and memory layout of all implementations of the neuron."""

import inspect
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd import Function

from lbq.errors import ParameterError
from lbq.functional.membrane import check_reset_mode
from lbq.functional.planes import check_max_level
from lbq.types import Bursts, Carry, Levels, ResetMode

Keep = Literal["membranes", "currents"]


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """Settings of a burst neuron without a gradient."""

    max_level: int
    """The largest level (N_max), 1..255."""
    lo: float
    """Where the surrogate's plateau begins, in steps."""
    hi: float
    """Where the surrogate's plateau ends, in steps."""
    reset_mode: ResetMode = "event"
    """What emission subtracts: one step, one step per level, or nothing."""
    detach_reset: bool = False
    """Keep the step inside the reset out of the gradient."""
    detach_carry: bool = False
    """Stop the gradient between timesteps (no back-propagation through time)."""
    keep: Keep = "membranes"
    """What the native kernels save for the backward: membranes (4 bytes per neuron and timestep),
    or the currents (2 bytes in bfloat16, shared by the timesteps if they are repeated), from which
    the membranes are recomputed with the same bits."""

    def __post_init__(self) -> None:
        check_max_level(self.max_level)
        check_reset_mode(self.reset_mode)
        if self.keep not in get_args(Keep):
            raise ParameterError(f'keep must be "membranes" or "currents", got {self.keep!r}')


class ScanOutput(NamedTuple):
    """Result of a burst neuron for a sequence."""

    bursts: Bursts
    """step * level, in the currents' dtype."""
    levels: Levels
    """The integer levels, uint8, without gradient."""
    carry: Carry
    """State after the last timestep, input of the next call of a stream."""


class _PositionalCall(NamedTuple):
    """The part of ``inspect.BoundArguments`` that torch uses."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object] = MappingProxyType({})

    def apply_defaults(self) -> None:
        """There are none."""


class _PositionalSignature(inspect.Signature):
    """A signature whose arguments are all positional."""

    def bind(self, *args: object) -> _PositionalCall:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _PositionalCall(args)


F = TypeVar("F", bound=type[Function])


def cache_signature(function: F) -> F:
    """Store the signature of an autograd function's forward, called by position only.

    torch would inspect and bind it at every call, which costs more than a small neuron.
    """
    known = inspect.signature(function.forward)
    function.forward.__signature__ = _PositionalSignature(list(known.parameters.values()))  # pyright: ignore[reportFunctionMemberAccess]
    return function


packing: ContextVar[bool] = ContextVar("packing", default=False)
"""Whether :func:`lbq.pack_bursts` is active."""


def is_packing() -> bool:
    """Return whether bursts are kept as packed levels."""
    return packing.get()


is_packing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess] -- see scan.py


def note_step(ctx: Any, step: Tensor) -> None:
    """Tell :mod:`lbq.kernels.burst_packing` the step of the bursts that a scan returns."""
    if is_packing():
        ctx.burst_step = step.detach()


class CompiledScan(Function):
    """Base of the compiled implementations; ``forward`` returns last what ``backward`` needs.

    ``apply(currents, step, tail, decay, reset, carry, options)``, as ``PlainBurstScan``.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        """Save membranes or currents; nothing else of their size."""
        currents, *tensors, options = inputs
        _, levels, _, kept = output
        ctx.mark_non_differentiable(levels, *(() if kept is None else (kept,)))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(currents if kept is None else kept, *tensors)
        ctx.options, ctx.dtype = options, currents.dtype
        note_step(ctx, tensors[0])


class Layout(NamedTuple):
    """Strides of a dense sequence with time outermost, and the run length of equal steps."""

    strides: tuple[int, ...]
    run: int


def layout_for(currents: Tensor, step: Tensor) -> Layout | None:
    """Return the layout of a sequence; None if it is not dense or the step does not fit."""
    if torch.compiler.is_compiling():  # symbolic sizes cannot be cached
        return _layout(currents.shape, currents.stride(), step.shape)
    return _known(currents.shape, currents.stride(), step.shape)


def _layout(
    shape: tuple[int, ...], strides: tuple[int, ...], step_shape: tuple[int, ...]
) -> Layout | None:
    instant, size = shape[1:], prod(shape[1:])
    if shape[0] > 1 and strides[0] not in (0, size):
        return None
    axes = range(len(instant))
    is_last = len(instant) == 4 and _is_dense(instant, strides[1:], (0, 2, 3, 1))
    if not (is_last or _is_dense(instant, strides[1:], axes)):
        return None
    order = (size, *strides[1:])
    if prod(step_shape) == 1:
        return Layout(order, max(1, size))
    if tuple(step_shape) != (shape[2], *[1] * (len(shape) - 3)):
        return None
    # 1x1 images are contiguous both ways: either run length is right
    return Layout(order, 1 if is_last else prod(shape[3:]))


_known = lru_cache(maxsize=1024)(_layout)  # a network has few layouts


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...], axes: Iterable[int]) -> bool:
    """Return whether values are contiguous, the last of ``axes`` fastest."""
    expected = 1
    for axis in reversed(tuple(axes)):
        if shape[axis] != 1 and strides[axis] != expected:
            return False
        expected *= shape[axis]
    return True


def require_layout(sequence: Tensor, step: Tensor) -> Layout:
    """Return the layout of a sequence that has one."""
    layout = layout_for(sequence, step)
    assert layout is not None  # checked by can_run
    return layout


def match_layout(values: Tensor | None, like: Tensor) -> Tensor | None:
    """Return values in the memory order and dtype of ``like``, copied if needed.

    Compiled programs always copy, since strides of gradients are unknown while tracing.
    """
    if values is None:
        return None
    is_known = not torch.compiler.is_compiling()
    if is_known and values.stride() == like.stride() and values.dtype == like.dtype:
        return values
    return torch.empty_like(like).copy_(values)
