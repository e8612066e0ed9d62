"""Levels with a sign, taken apart into what adds and what subtracts."""

from collections.abc import Callable

from torch import Tensor


def by_sign(levels: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """Multiply the positive levels, and subtract the product of the negative ones' sizes."""
    if not levels.dtype.is_signed or not bool((levels < 0).any()):
        return multiply(levels)
    return multiply(levels.clamp(min=0)) - multiply((-levels).clamp(min=0))
