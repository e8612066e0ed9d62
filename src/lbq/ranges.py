"""Range checks of configuration values."""

from dataclasses import dataclass
from typing import Any

from lbq.errors import LBQError

LARGEST_COUNT = 2**31 - 1
"""Largest count that all libraries can represent."""


@dataclass(frozen=True)
class Range:
    """The finite numbers between two limits, inclusive unless open."""

    least: int | float
    most: int | float = LARGEST_COUNT
    is_open_below: bool = False
    is_open_above: bool = False

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, int | float):
            return False
        is_above = value > self.least if self.is_open_below else value >= self.least
        return is_above and (value < self.most if self.is_open_above else value <= self.most)

    def describe(self, value: Any) -> str:
        """Describe the range in an error message about a value."""
        low = f"{'above' if self.is_open_below else 'at least'} {self.least}"
        if self.most == LARGEST_COUNT and isinstance(value, int) and value < self.most:
            return low
        return f"{low} and {'below' if self.is_open_above else 'at most'} {self.most}"


def check_ranges(config: object, error: type[LBQError], **ranges: Range) -> None:
    """Raise unless every named field, or each member of a tuple, is None or in its range.

    NaN and infinities are in no range.
    """
    for name, allowed in ranges.items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and number not in allowed:
                shown = repr(value)
                raise error(
                    f"{name} must be {allowed.describe(number)}, got "
                    f"{shown if len(shown) <= 80 else shown[:40] + '...'}"
                )
