"""Surrogate gradients: soft levels that replace the staircase in the backward."""

import math

import torch
from torch import Tensor, nn

from lbq.errors import ParameterError
from lbq.neurons.neuron import format_values, scalar
from lbq.types import Coefficient


class Surrogate(nn.Module):
    """A plateau from ``lo`` to ``max_level + margin``, in steps, with optional tails.

    Args:
        lo: where the plateau begins.
        margin: how far beyond ``max_level`` it ends.
        tail: strength of the tails (lambda), in (0, 1); None for a box.
        learn_tail: train the strength through lambda = sigmoid(eta).
    """

    def __init__(
        self, *, lo: float, margin: float, tail: float | None = None, learn_tail: bool = False
    ) -> None:
        super().__init__()
        self.lo = lo
        self.margin = margin
        self.raw_tail: Tensor | None
        if tail is None:
            self.raw_tail = None
            return
        if not 0 < tail < 1:
            raise ParameterError(
                f"tail must lie strictly between 0 and 1, got {tail}; use a box (tail=None) for 0"
            )
        raw = scalar(math.log(tail / (1 - tail)))
        if learn_tail:
            self.raw_tail = nn.Parameter(raw)
        else:
            self.register_buffer("raw_tail", raw)

    def hi(self, max_level: int) -> float:
        """Return where the plateau ends, in steps."""
        return max_level + self.margin

    def tail(self) -> Coefficient | None:
        """Return the strength of the tails, or None for a box."""
        return None if self.raw_tail is None else torch.sigmoid(self.raw_tail)

    def extra_repr(self) -> str:
        """Show plateau and tail."""
        tail = self.tail()
        strength = "none" if tail is None else format_values(tail)
        return f"lo={self.lo}, margin={self.margin}, tail={strength}"


class ReLSGET(Surrogate):
    """The paper's surrogate: plateau [1, N] and exponential tails of learned strength.

    One instance given to several neurons shares its tail among them.

    Args:
        tail: strength of the tails to start from (lambda).
        learn: train the strength, as the paper does.

    Example:
        >>> neuron = lbq.BurstLIF(max_level=5, surrogate=lbq.ReLSGET(tail=0.8))
        >>> current = torch.tensor([[[-1.0, 3.0, 8.0]]], requires_grad=True)
        >>> neuron(current).sum().backward()
        >>> current.grad > 0  # below the plateau, on it, and above: a gradient everywhere
        tensor([[[True, True, True]]])
    """

    def __init__(self, tail: float = 0.5, *, learn: bool = True) -> None:
        super().__init__(lo=1.0, margin=0.0, tail=tail, learn_tail=learn)


class BoxET(Surrogate):
    """The box of the paper's ablations: plateau [0.5, N + 0.5], nothing outside.

    Choice: the paper names Box-ET but does not define it (docs/decisions/0002).

    Example:
        >>> neuron = lbq.BurstLIF(max_level=5, surrogate=lbq.BoxET())
        >>> current = torch.tensor([[[-1.0, 3.0, 8.0]]], requires_grad=True)
        >>> neuron(current).sum().backward()
        >>> current.grad > 0  # no gradient outside of the box
        tensor([[[False,  True, False]]])
    """

    def __init__(self) -> None:
        super().__init__(lo=0.5, margin=0.5)


class MatchedBox(Surrogate):
    """ReLSG-ET without its tails, to isolate their effect: plateau [1, N], N >= 2."""

    def __init__(self) -> None:
        super().__init__(lo=1.0, margin=0.0)


class ClipBox(Surrogate):
    """The gradient of clip(r, 0, N), which explodes with depth if levels are rounded down."""

    def __init__(self) -> None:
        super().__init__(lo=0.0, margin=0.0)


class TailedBox(Surrogate):
    """Box-ET read literally ("exponential tails"): plateau [0.5, N + 0.5], fixed tails."""

    def __init__(self, tail: float = 0.5) -> None:
        super().__init__(lo=0.5, margin=0.5, tail=tail)
