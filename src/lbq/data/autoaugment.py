"""The AutoAugment policies of the published recipes, as data.

A policy is a list of rows; an image gets one of them at random. A row holds two turns, each with
the probability that it happens, an operation of ``pixels.py`` and an index into that operation's
ten magnitudes. The rows are those of the code line that the paper follows; they differ from other
implementations in signs, fill and one probability (docs/decisions/0021).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lbq.data.pixels import OPERATIONS, Bytes
from lbq.data.sampler import to_integers, to_uniform

Turn = tuple[float, str, int]
"""Probability, operation, index of the magnitude."""
PolicyName = Literal["cifar10", "imagenet"]

NUM_DRAWS = 5
"""Random numbers that an image takes: its row, and for both turns whether and with which sign."""


def _spread(last: float, first: float = 0.0) -> tuple[float, ...]:
    return tuple(np.linspace(first, last, 10).tolist())


RANGES: dict[str, tuple[float, ...]] = {
    "shear_x": _spread(0.3),
    "shear_y": _spread(0.3),
    "translate_x": _spread(150 / 331),
    "translate_y": _spread(150 / 331),
    "rotate": _spread(30.0),
    "color": _spread(0.9),
    "posterize": (8.0, 8.0, 7.0, 7.0, 6.0, 6.0, 5.0, 5.0, 4.0, 4.0),
    "solarize": _spread(0.0, first=256.0),
    "contrast": _spread(0.9),
    "sharpness": _spread(0.9),
    "brightness": _spread(0.9),
    "autocontrast": _spread(0.0),
    "equalize": _spread(0.0),
    "invert": _spread(0.0),
}
"""Ten magnitudes for every operation."""

SIGNED = {"shear_x", "shear_y", "translate_x", "translate_y"}
"""The magnitude is negated half of the time."""
AROUND_ONE = {"color", "contrast", "sharpness", "brightness"}
"""The magnitude is added to 1 or taken from it, half of the time each."""

ROWS: dict[PolicyName, tuple[tuple[Turn, Turn], ...]] = {
    "cifar10": (
        ((0.1, "invert", 7), (0.2, "contrast", 6)),
        ((0.7, "rotate", 2), (0.3, "translate_x", 9)),
        ((0.8, "sharpness", 1), (0.9, "sharpness", 3)),
        ((0.5, "shear_y", 8), (0.7, "translate_y", 9)),
        ((0.5, "autocontrast", 8), (0.9, "equalize", 2)),
        ((0.2, "shear_y", 7), (0.3, "posterize", 7)),
        ((0.4, "color", 3), (0.6, "brightness", 7)),
        ((0.3, "sharpness", 9), (0.7, "brightness", 9)),
        ((0.6, "equalize", 5), (0.5, "equalize", 1)),
        ((0.6, "contrast", 7), (0.6, "sharpness", 5)),
        ((0.7, "color", 7), (0.5, "translate_x", 8)),
        ((0.3, "equalize", 7), (0.4, "autocontrast", 8)),
        ((0.4, "translate_y", 3), (0.2, "sharpness", 6)),
        ((0.9, "brightness", 6), (0.2, "color", 8)),
        ((0.5, "solarize", 2), (0.0, "invert", 3)),
        ((0.2, "equalize", 0), (0.6, "autocontrast", 0)),
        ((0.2, "equalize", 8), (0.8, "equalize", 4)),
        ((0.9, "color", 9), (0.6, "equalize", 6)),
        ((0.8, "autocontrast", 4), (0.2, "solarize", 8)),
        ((0.1, "brightness", 3), (0.7, "color", 0)),
        ((0.4, "solarize", 5), (0.9, "autocontrast", 3)),
        ((0.9, "translate_y", 9), (0.7, "translate_y", 9)),
        ((0.9, "autocontrast", 2), (0.8, "solarize", 3)),
        ((0.8, "equalize", 8), (0.1, "invert", 3)),
        ((0.7, "translate_y", 9), (0.9, "autocontrast", 1)),
    ),
    "imagenet": (
        ((0.4, "posterize", 8), (0.6, "rotate", 9)),
        ((0.6, "solarize", 5), (0.6, "autocontrast", 5)),
        ((0.8, "equalize", 8), (0.6, "equalize", 3)),
        ((0.6, "posterize", 7), (0.6, "posterize", 6)),
        ((0.4, "equalize", 7), (0.2, "solarize", 4)),
        ((0.4, "equalize", 4), (0.8, "rotate", 8)),
        ((0.6, "solarize", 3), (0.6, "equalize", 7)),
        ((0.8, "posterize", 5), (1.0, "equalize", 2)),
        ((0.2, "rotate", 3), (0.6, "solarize", 8)),
        ((0.6, "equalize", 8), (0.4, "posterize", 6)),
        ((0.8, "rotate", 8), (0.4, "color", 0)),
        ((0.4, "rotate", 9), (0.6, "equalize", 2)),
        ((0.0, "equalize", 7), (0.8, "equalize", 8)),
        ((0.6, "invert", 4), (1.0, "equalize", 8)),
        ((0.6, "color", 4), (1.0, "contrast", 8)),
        ((0.8, "rotate", 8), (1.0, "color", 2)),
        ((0.8, "color", 8), (0.8, "solarize", 7)),
        ((0.4, "sharpness", 7), (0.6, "invert", 8)),
        ((0.6, "shear_x", 5), (1.0, "equalize", 9)),
        ((0.4, "color", 0), (0.6, "equalize", 3)),
        ((0.4, "equalize", 7), (0.2, "solarize", 4)),
        ((0.6, "solarize", 5), (0.6, "autocontrast", 5)),
        ((0.6, "invert", 4), (1.0, "equalize", 8)),
        ((0.6, "color", 4), (1.0, "contrast", 8)),
    ),
}


@dataclass(frozen=True)
class Policy:
    """Rows that are ready to be applied to whole batches."""

    rows: Sequence[tuple[Turn, Turn]]

    def apply(self, images: Bytes, bits: NDArray[np.uint64]) -> Bytes:
        """Give every image its row: ``bits`` are ``[B, NUM_DRAWS]``.

        Images that get the same operation in the same turn are worked on together.
        """
        operations, probabilities, magnitudes = self._tables
        images = images.copy()
        row = to_integers(bits[:, 0], len(self.rows))
        for turn in (0, 1):
            happens = to_uniform(bits[:, 1 + 2 * turn]) < probabilities[row, turn]
            magnitude = magnitudes[row, turn, to_integers(bits[:, 2 + 2 * turn], 2)]
            operation = np.where(happens, operations[row, turn], -1)
            for code, operate in enumerate(OPERATIONS.values()):
                chosen = np.flatnonzero(operation == code)
                if len(chosen):
                    images[chosen] = operate(images[chosen], magnitude[chosen])
        return images

    @cached_property
    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Operations and probabilities ``[rows, 2]``, magnitudes by sign ``[rows, 2, 2]``."""
        codes = {name: code for code, name in enumerate(OPERATIONS)}
        operations = np.array([[codes[turn[1]] for turn in row] for row in self.rows])
        probabilities = np.array([[turn[0] for turn in row] for row in self.rows])
        magnitudes = np.array([[_by_sign(turn) for turn in row] for row in self.rows])
        return operations, probabilities, magnitudes


POLICIES: dict[PolicyName, Policy] = {name: Policy(rows) for name, rows in ROWS.items()}


def _by_sign(turn: Turn) -> tuple[float, float]:
    _, operation, index = turn
    magnitude = RANGES[operation][index]
    if operation in SIGNED:
        return -magnitude, magnitude
    if operation in AROUND_ONE:
        return 1 - magnitude, 1 + magnitude
    return magnitude, magnitude
