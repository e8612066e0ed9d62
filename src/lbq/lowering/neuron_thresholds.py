"""Convert trained neurons to thresholds that give the same levels."""

import torch
from torch import Tensor

from lbq.errors import LoweringError, StepError
from lbq.functional.quantize import level_thresholds
from lbq.graph.capture import overridden_methods
from lbq.graph.operators import RealNeuron
from lbq.neurons.baselines import (
    LMHT,
    BinaryLIF,
    HardResetLIF,
    IntegerLIF,
    MultiLevelLIF,
    OriginalTernaryLIF,
    TernaryLIF,
)
from lbq.neurons.burst import BurstLIF
from lbq.neurons.neuron import Neuron
from lbq.neurons.step import LearnedStep, NeuronStep

_NEURONS = (
    BurstLIF,
    TernaryLIF,
    OriginalTernaryLIF,
    BinaryLIF,
    HardResetLIF,
    IntegerLIF,
    MultiLevelLIF,
    LMHT,
)
STEP_RANGE = (1e-4, 1e4)
"""Allowed steps; networks with other steps are degenerate and raise an error."""


@torch.no_grad()
def as_level_neuron(neuron: Neuron, *, path: str, dtype: torch.dtype) -> tuple[RealNeuron, Tensor]:
    """Return the node with the neuron's levels, and the step that scales the levels."""
    _check_methods(neuron, path)
    one = torch.ones(1, dtype=dtype)
    if isinstance(neuron, BurstLIF | TernaryLIF):
        step = _step(neuron.step(), path, dtype)
        is_burst = isinstance(neuron, BurstLIF)
        thresholds = level_thresholds(step, max_level=neuron.max_level)
        if (
            is_burst and neuron.level_set == "powers"
        ):  # a level in between has the threshold of the next power of two
            above = [1 << (level - 1).bit_length() for level in range(1, neuron.max_level + 1)]
            thresholds = thresholds[[level - 1 for level in above]]
        node = RealNeuron(
            thresholds,
            decay=neuron.decay().to(dtype),
            reset_amount=neuron.reset.to(dtype) * step,
            reset=neuron.options.reset_mode,
            is_signed=neuron.is_signed,
        )
    elif isinstance(neuron, OriginalTernaryLIF):
        step = _step(neuron.step(), path, dtype)
        node = RealNeuron(
            level_thresholds(one * neuron.THRESHOLD, max_level=1),
            decay=neuron.decay().to(dtype),
            reset_amount=one,
            reset="zero",
            is_signed=True,
        )
    elif isinstance(neuron, BinaryLIF):
        step, threshold = one, neuron.threshold.to(dtype)
        node = RealNeuron(
            _above(threshold).unsqueeze(0),
            decay=neuron.decay().to(dtype),
            reset_amount=neuron.reset.to(dtype) * threshold,
            reset="event",
            resets_after_decay=True,
        )
    elif isinstance(neuron, HardResetLIF):
        step, threshold = one, neuron.threshold.to(dtype)
        node = RealNeuron(
            level_thresholds(threshold, max_level=1),
            decay=neuron.decay().to(dtype),
            reset_amount=one,
            reset="zero",
        )
    elif isinstance(neuron, IntegerLIF):
        step = one * neuron.scale
        node = RealNeuron(
            _rounding_thresholds(neuron.max_level, dtype),
            decay=neuron.decay().to(dtype),
            reset_amount=one,
            reset="level",
        )
    elif isinstance(neuron, MultiLevelLIF):
        step = one
        node = RealNeuron(
            _above(neuron.thresholds.to(dtype)).unsqueeze(1),
            decay=neuron.decay().to(dtype),
            reset_amount=one,
            reset="zero",
            per_threshold_state=True,
        )
    elif isinstance(neuron, LMHT):
        step = neuron.step.to(dtype)
        mixture = 2 * torch.sigmoid(neuron.raw_mixture.to(dtype)) / neuron.timesteps
        node = RealNeuron(
            level_thresholds(step, max_level=neuron.max_level),
            decay=torch.sigmoid(neuron.raw_leak.to(dtype)) + 0.5,
            reset_amount=step,
            reset="level",
            mixture=mixture,
        )
    else:
        raise LoweringError(
            f"{path} is a {type(neuron).__name__}, which cannot be converted to thresholds"
        )
    converted = node.with_tensors(lambda tensor: tensor.to(dtype))
    assert isinstance(converted, RealNeuron)
    return converted, step.double()


def _check_methods(neuron: Neuron, path: str) -> None:
    """Raise for neurons and steps whose class overrides a method of the library's class."""
    step = getattr(neuron, "step", None)
    for module, known in ((neuron, _NEURONS), (step, (LearnedStep, NeuronStep))):
        base = next((kind for kind in known if isinstance(module, kind)), None)
        if module is None or base is None:
            continue
        changed = overridden_methods(module, base)
        if module is step:  # the result of its forward is used, whatever it computes
            changed = [name for name in changed if name == "for_currents"]
        else:  # the code of its forward is lowered
            changed = [name for name in changed if name != "forward"]
        if changed:
            raise LoweringError(
                f"{path} has a {type(module).__name__}, which overrides {changed[0]} of "
                f"{base.__name__}, so its levels are unknown; use {base.__name__} itself"
            )


def _step(step: Tensor, path: str, dtype: torch.dtype) -> Tensor:
    low, high = STEP_RANGE
    slack = 1e-6  # ends of the range, rounded to float32
    if not bool(((step >= low * (1 - slack)) & (step <= high * (1 + slack))).all()):
        raise StepError(
            f"{path} has a step of {step.min().item():g}..{step.max().item():g}; steps "
            f"outside {low:g}..{high:g} are degenerate, and the network is not lowered"
        )
    return step.detach().to(dtype)


def _above(threshold: Tensor) -> Tensor:
    """Return the next larger floats, so that ``>=`` with them equals ``>`` without."""
    return torch.nextafter(threshold, torch.full_like(threshold, torch.inf))


def _rounding_thresholds(max_level: int, dtype: torch.dtype) -> Tensor:
    """Return where rounding half to even reaches each level; odd levels just above the half."""
    halves = torch.arange(max_level, dtype=dtype) + 0.5
    is_odd = torch.arange(1, max_level + 1) % 2 == 1
    return torch.where(is_odd, _above(halves), halves).unsqueeze(1)
