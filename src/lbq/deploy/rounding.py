"""From real numbers to integers: weights, decays, and the error that rounding makes on average."""

from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lbq.deploy.lowered_network import INPUT, LoweredNetwork
from lbq.deploy.nodes import Synapse

MAX_SHIFT = 8
"""A decay is a multiple of 1 / 2**8."""
_SHRINKS = tuple(1 - k / 40 for k in range(21))
"""Shares of the largest weight at which weights may be clipped."""


def rounded(weight: Tensor, unit: Tensor, *, bits: int) -> Tensor:
    """Round weights to integers of ``bits`` in these units, symmetrically, the rest clipped."""
    largest = 2 ** (bits - 1) - 1
    shaped = unit.reshape(-1, *[1] * (weight.dim() - 1))
    integers = (weight / shaped).round().clamp(-largest, largest)
    return integers.to(torch.int8 if bits <= 8 else torch.int16)


def best_unit(weight: Tensor, *, bits: int) -> Tensor:
    """Find per output channel the unit in which rounding and clipping lose least, in squares."""
    largest = 2 ** (bits - 1) - 1
    widest = weight.flatten(1).abs().amax(1) / largest
    widest = widest.clamp(min=1e-30)
    best, least = widest, torch.full_like(widest, torch.inf)
    for share in _SHRINKS:
        unit = widest * share
        kept = rounded(weight, unit, bits=bits).double() * unit.reshape(
            -1, *[1] * (weight.dim() - 1)
        )
        lost = (kept - weight).square().flatten(1).sum(1)
        best, least = torch.where(lost < least, unit, best), torch.minimum(lost, least)
    return best


def decay_as_fraction(decay: float, *, max_shift: int) -> tuple[int, int]:
    """Write a decay as multiplier and shift: ``multiplier / 2**shift``, as short as possible."""
    nearest = Fraction(round(decay * 2**max_shift), 2**max_shift)
    return nearest.numerator, nearest.denominator.bit_length() - 1


def mean_inputs(network: LoweredNetwork, inputs: Tensor) -> dict[str, Tensor]:
    """Run a lowered network and return, for every synapse, the mean of each input channel."""
    means: dict[str, Tensor] = {}

    def look(path: str, node: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(node, Synapse)
        seen = args[0].double().flatten(0, 1 if node.has_time else 0)  # [instants, C, *space]
        if node.is_linear:
            means[path] = seen.flatten(1).mean(0)
        else:
            means[path] = seen.mean((0, 2, 3))

    hooks = [
        node.register_forward_pre_hook(partial(look, place.path))
        for place, node in network.nodes()
        if isinstance(node, Synapse) and place.inputs != (INPUT,)
    ]
    try:
        network(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return means
