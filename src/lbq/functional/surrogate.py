"""Gradients through a staircase: soft levels (Eqs. 9-12), and the arctangent.

A soft level B(r) is the identity on a plateau ``lo <= r <= hi`` and leaves it in two exponential
tails of strength ``tail``:

=====================  =====  =========  ==========================
surrogate              lo     hi         tail
=====================  =====  =========  ==========================
ReLSG-ET (the paper)   1      N          learned, in (0, 1)
Box-ET (ablations)     0.5    N + 0.5    none (docs/decisions/0002)
matched box            1      N          none
clip box               0      N          none
tailed box             0.5    N + 0.5    0.5
=====================  =====  =========  ==========================

Slopes are computed from the *side* of the plateau (-1 below, 0 on it, 1 above) and the *fade* of
the tail (1 on the plateau, towards 0 outside), without branches: no discarded branch can overflow
and turn the gradient into NaN, and on a CPU arithmetic is many times faster than ``torch.where``.
"""

import math

from lbq.types import Burst, Level, Membrane, Ratio, Scalar, SoftLevel, Step


def soft_level(ratio: Ratio, *, lo: float, hi: float, tail: Scalar | None = None) -> SoftLevel:
    """Follow the ratio on its plateau and bend away in exponential tails outside (Eq. 9).

    Continuous, non-decreasing, slope at most 1 for ``tail <= 1``. ``tail=None`` means a box:
    constant outside the plateau.
    """
    nearest = ratio.clamp(lo, hi)
    if tail is None:
        return nearest
    excess = ratio - nearest
    return nearest + tail * (excess.sign() * (1 - excess.abs().neg().exp()))


def straight_through(level: Level, soft: SoftLevel, step: Step) -> Burst:
    """Send ``step * level`` forward and the gradient of ``step * soft`` backward (Eq. 10).

    ``soft + (level - soft)`` equals ``level`` bit for bit in floating point for every soft level
    of the family: the two differ by less than a factor of two, or the level is zero.
    """
    return step * (soft + (level - soft).detach())


def plateau_position(ratio: Ratio, *, lo: float, hi: float) -> tuple[Ratio, Ratio]:
    """Return the side of the plateau on which a ratio lies, and the fade of its tail.

    No gradient.
    """
    ratio = ratio.detach()
    excess = ratio.clamp(lo, hi).sub_(ratio).neg_()
    return excess.sign(), excess.abs_().neg_().exp_()


def soft_level_slope(side: Ratio, fade: Ratio, *, tail: Scalar | None = None) -> Ratio:
    """Differentiate the burst with respect to the membrane: B'(r) (Eq. 11).

    1 on the closed plateau, ``tail * exp(-distance)`` outside it, 0 outside if there is no tail.
    ``side`` and ``fade`` are the :func:`plateau_position` of the ratio.
    """
    outside = side.abs()
    if tail is None:
        return outside.neg_().add_(1)
    in_tail = tail * (fade * outside)
    return in_tail.add_(outside.neg_().add_(1))


def step_slope(level: Level, ratio: Ratio, slope: Ratio) -> Ratio:
    """Differentiate the burst with respect to the step: S - r B'(r) (Eq. 12).

    The paper prints the middle range, where the slope is 1; this form holds everywhere.
    """
    return level - ratio * slope


def tail_slope(side: Ratio, fade: Ratio) -> Ratio:
    """Differentiate the soft level with respect to the tail.

    Zero on the plateau, negative below, positive above: the tail has a gradient although it never
    changes the forward value.
    """
    return (1 - fade).mul_(side)


def arctan_soft_spike(membrane: Membrane, *, threshold: Step, sharpness: float = 2.0) -> SoftLevel:
    """Rise from 0 to 1 around the threshold along an arctangent, for binary neurons.

    Its slope is ``a / (2 (1 + (pi/2 a u)^2))`` with ``u = membrane - threshold``.
    """
    return (math.pi / 2 * sharpness * (membrane - threshold)).atan() / math.pi + 0.5
