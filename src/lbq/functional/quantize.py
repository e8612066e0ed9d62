"""From membrane to level: the number of thresholds reached (Eqs. 2-6).

:func:`burst_level` is the only formula for the level of a burst neuron: ``floor(U / step)`` and
``floor(U * (1 / step))`` differ at thresholds.
"""

import torch

from lbq.types import Burst, Level, Membrane, Step, Thresholds


def binary_spike(membrane: Membrane, *, threshold: Step) -> Level:
    """Emit one spike where the membrane exceeds the threshold (Eq. 2).

    The comparison is strict, unlike every other one in the paper. No gradient.
    """
    return (membrane.detach() > threshold).to(membrane.dtype)


def count_thresholds(membrane: Membrane, thresholds: Thresholds) -> Level:
    """Count the thresholds that the membrane has reached (Eq. 3).

    ``thresholds`` rise along their first axis; each is one number, or broadcasts against the
    membrane. No gradient.
    """
    first, *others = thresholds.unbind(0)
    level = (membrane.detach() >= first).to(membrane.dtype)
    for threshold in others:
        level += membrane.detach() >= threshold
    return level


def level_thresholds(step: Step, *, max_level: int) -> Thresholds:
    """Find the smallest membranes at which :func:`burst_level` reaches 1, 2, .. ``max_level``.

    They are ``k * step`` up to a rounding or two: a quotient just below ``k`` may be rounded to it.
    With them :func:`count_thresholds` equals :func:`burst_level` on every float of the step's
    dtype. Shape ``[N, *step.shape]``.
    """
    counts = torch.arange(1, max_level + 1, dtype=step.dtype, device=step.device)
    counts = counts.reshape(-1, *[1] * step.dim())  # [N, 1, ...]
    thresholds = counts * step.detach()
    for _ in range(2):
        above = torch.nextafter(thresholds, torch.full_like(thresholds, torch.inf))
        thresholds = torch.where(thresholds / step < counts, above, thresholds)
    for _ in range(4):
        below = torch.nextafter(thresholds, torch.full_like(thresholds, -torch.inf))
        thresholds = torch.where(below / step >= counts, below, thresholds)
    return thresholds


def fixed_burst_level(membrane: Membrane, interval: float, *, max_level: int) -> Level:
    """Count the whole fixed intervals in the membrane, saturated at ``max_level`` (Eq. 4)."""
    step = torch.full((1,), interval, dtype=membrane.dtype, device=membrane.device)
    return burst_level(membrane, step, max_level=max_level)


def burst(membrane: Membrane, step: Step, *, max_level: int) -> Burst:
    """Scale the level by the step: the output of a neuron in training (Eq. 5).

    This is the forward value. Training needs :func:`lbq.functional.surrogate.straight_through`,
    which has the same value and a gradient to the membrane.
    """
    return step * burst_level(membrane, step, max_level=max_level)


def burst_level(membrane: Membrane, step: Step, *, max_level: int) -> Level:
    """Count the whole steps in the membrane, saturated at 0 and ``max_level`` (Eq. 6).

    The result is integer-valued but keeps the membrane's dtype, so that it can enter a
    convolution directly. It carries no gradient.
    """
    return (membrane.detach() / step.detach()).floor_().clamp_(0, max_level)


def ternary_level(membrane: Membrane, step: Step) -> Level:
    """Emit the sign of the membrane where its size reaches one step: -1, 0 or 1.

    Not numbered in the paper, which names the ternary neuron as a baseline. No gradient.
    """
    return burst_level(membrane.abs(), step, max_level=1) * membrane.detach().sign()
