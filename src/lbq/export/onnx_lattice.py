"""A residual sum in bytes: the convolution's current on a grid finer than the step.

Beside a shortcut a current cannot be rounded to levels before the sum, only to a finer grid of
``fine`` points per step. If the shortcut's weight is a whole number of these points, ``weight``,
nothing is lost: whole points can be added before or after rounding down. So the finest fraction
``weight / fine`` near the real ratio is looked for, among those whose points fit a byte; beyond the
last threshold that any level on the shortcut leaves open, a current saturates.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_BYTE_MAX = 255


class QuantGrid(NamedTuple):
    """``point = round(scale * (current + offset))``; a level is the rounded mean of points.

    ``level = round(unit * (point + weight * shortcut level))``, and a byte is point + zero.
    """

    scale: np.ndarray
    """Points per unit of current, ``[C]``."""
    offset: np.ndarray
    weight: int
    """Points that one level on the shortcut is worth."""
    unit: float
    """Steps that a point is worth."""
    zero: int
    is_exact: np.ndarray
    """Whether every current gets its own level beside every level of the shortcut, ``[C]``."""
    error: float
    """The largest distance of a threshold from its place, in steps."""


def fit_quant_grid(
    thresholds: Tensor, shortcut: Tensor, *, max_input: int, gain: int
) -> QuantGrid | None:
    """Find the grid that moves thresholds least; None if no grid fits a byte.

    Args:
        thresholds: thresholds ``[N, C]``, integers.
        shortcut: its weights, ``[C]`` or ``[1]``, integers.
        max_input: the largest level that the shortcut carries.
        gain: by how much the convolution's weights were multiplied.
    """
    rungs = thresholds.to(torch.float64).numpy()  # [N, C]
    step = rungs[-1] / len(rungs)
    ratio = float(np.median(shortcut.numpy() / step))
    found: list[QuantGrid] = []
    for fine in range(1, _BYTE_MAX, 2):  # odd: no sum lies half way between two levels
        weight = round(fine * ratio)
        lowest = min(fine - weight * max_input - 1, fine // 2)
        if fine * len(rungs) - lowest <= _BYTE_MAX:
            found.append(_fit(rungs, shortcut.numpy(), max_input, gain, fine, weight, lowest))
    return min(found, key=lambda grid: grid.error, default=None)


def _fit(
    rungs: np.ndarray,
    shortcut: np.ndarray,
    max_input: int,
    gain: int,
    fine: int,
    weight: int,
    lowest: int,
) -> QuantGrid:
    """Fit a line, per channel, to the smallest current of every level beside every other."""
    half = fine // 2
    levels = np.arange(1, len(rungs) + 1).reshape(-1, 1)
    inputs = np.arange(max_input + 1)
    points = (fine * levels - weight * inputs - half).reshape(-1, 1)  # [N * inputs, 1]
    reached = rungs[:, None] - inputs.reshape(-1, 1) * shortcut  # [N, inputs, C]
    reached = gain * reached.reshape(len(points), -1)
    border = reached - gain / 2  # no current lies between reached and reached - gain
    wanted = points - 0.5
    slope = _slope(border - border.mean(0), wanted - wanted.mean(0))
    offset = np.round(wanted.mean() / slope - border.mean(0))
    slope = _slope(border + offset, wanted)
    stored = slope.astype(np.float32)
    above, below = (
        np.rint((side + offset).astype(np.float32) * stored) for side in (reached, reached - gain)
    )
    distance = np.abs(wanted / slope - offset - border) - gain / 2
    error = np.maximum(distance, 0) / (gain * rungs[-1] / len(rungs))
    return QuantGrid(
        stored,
        offset,
        weight,
        1 / fine,
        half - lowest,
        ((above >= points) & (below < points)).all(0),
        float(error.max()),
    )


def _slope(currents: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Fit a line through the origin by least squares, per channel."""
    return (currents * points).sum(0) / (currents**2).sum(0)
