"""A declared neuron in plain torch: a loop over the equations, differentiated by autograd.

It is the reference of the kernels for declared neurons, levels bit for bit, and what runs where
they cannot.
"""

import torch
from torch import Tensor

from lbq.functional.membrane import integrate, lif_membrane, soft_reset, steps_removed
from lbq.functional.quantize import burst_level, count_thresholds
from lbq.functional.surrogate import soft_level, soft_spike
from lbq.kernels.neuron_spec import Plateau, ResolvedNeuron, Side, Window
from lbq.kernels.scan_interface import ScanOutput
from lbq.types import Carry, Currents, Level, Membrane, SoftLevel


def neuron_scan_plain(currents: Currents, neuron: ResolvedNeuron, carry: Carry) -> ScanOutput:
    """Integrate, emit and reset, one timestep after the other.

    Args:
        currents: the sequence, in the dtype of membranes.
        neuron: the declaration.
        carry: the state to start from.
    """
    spec = neuron.spec
    level_dtype = torch.int8 if spec.is_signed else torch.uint8
    bursts: list[Tensor] = []
    levels: list[Tensor] = []
    for current in currents.unbind(0):
        membrane = _integrate(neuron, carry, current)
        level = _level(neuron, membrane)
        soft = _soft_level(neuron, membrane)
        emitted = level + (soft - soft.detach())
        bursts.append(neuron.scale * emitted)
        levels.append(level.to(level_dtype))
        carry = _reset(neuron, membrane, emitted if spec.resets_with_gradient else level)
        if spec.detach_carry:
            carry = carry.detach()
    return ScanOutput(torch.stack(bursts), torch.stack(levels), carry)


def _integrate(neuron: ResolvedNeuron, carry: Carry, current: Tensor) -> Membrane:
    if not neuron.spec.after_decay:
        return integrate(carry, current, decay=neuron.decay)
    mode = "level" if neuron.spec.reset == "level" else "event"
    return lif_membrane(
        carry,
        current,
        spike=steps_removed(_level(neuron, carry), mode=mode),
        decay=neuron.decay,
        threshold=neuron.amount,
        reset=1.0,
    )


def _reset(neuron: ResolvedNeuron, membrane: Membrane, emitted: Level) -> Carry:
    """Return the carry; ``emitted`` is the level, with the gradient of the reset if it has one."""
    spec = neuron.spec
    if spec.reset == "none" or spec.after_decay:
        return membrane
    if spec.resets_with_gradient:
        if spec.reset == "zero":
            return membrane * (1 - (emitted.abs() if spec.is_signed else emitted))
        return membrane - neuron.amount * emitted
    if spec.reset == "zero":
        return membrane * (emitted == 0)
    return soft_reset(membrane, emitted, step=neuron.amount, reset=1.0, mode=spec.reset)


def _level(neuron: ResolvedNeuron, membrane: Membrane) -> Level:
    level = _level_of_side(neuron, membrane, neuron.above)
    if neuron.below is None:
        return level
    return level - _level_of_side(neuron, -membrane, neuron.below)


def _level_of_side(neuron: ResolvedNeuron, membrane: Membrane, side: Side) -> Level:
    if not neuron.spec.is_uniform:
        return count_thresholds(membrane, side.edges, jumps=side.jumps)
    level = burst_level(membrane, neuron.scale, max_level=len(side.jumps))
    if set(side.jumps) == {1}:
        return level
    return count_thresholds(level, side.edges.flatten(), jumps=side.jumps)


def _soft_level(neuron: ResolvedNeuron, membrane: Membrane) -> SoftLevel:
    spec = neuron.spec
    ratio = membrane / neuron.scale if spec.is_uniform else membrane
    if isinstance(spec.surrogate, Plateau):
        lo, hi = spec.surrogate.lo, spec.surrogate.hi
        if not spec.is_signed:
            return soft_level(ratio, lo=lo, hi=hi, tail=neuron.tail)
        sign = membrane.detach().sign()
        if lo < 0:  # both sides meet at zero
            sign = torch.where(sign == 0, 1, sign)
        return sign * soft_level(sign * ratio, lo=lo, hi=hi, tail=neuron.tail)
    soft = _soft_spikes(ratio, neuron.above, spec.surrogate)
    return (
        soft if neuron.below is None else soft - _soft_spikes(-ratio, neuron.below, spec.surrogate)
    )


def _soft_spikes(ratio: Tensor, side: Side, window: Window) -> SoftLevel:
    """Add up a soft spike for every threshold, as high as its jump."""
    soft = torch.zeros_like(ratio)
    for jump, centre in zip(side.jumps, side.centres.unbind(0), strict=True):
        spike = soft_spike(ratio - centre, window=window.shape, width=window.width)
        soft = soft + jump * spike
    return soft
