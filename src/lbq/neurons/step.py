"""The step between levels: fixed or learned, one per layer or one per channel."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq.errors import ParameterError, ShapeError, StepError
from lbq.neurons.neuron import format_values
from lbq.types import Currents, Step

STEP_EPS = 1e-6
"""Added to every learned step, so that it cannot reach zero (epsilon)."""

GradientScale = Literal["none", "lsq"]


class NeuronStep(nn.Module):
    """Base of steps (gamma); calling it returns the step, always positive."""

    def forward(self) -> Step:
        """Return the step: shape ``(1,)``, or ``(C,)`` for one step per channel."""
        raise NotImplementedError

    def set_(self, value: Tensor) -> None:
        """Replace the step."""
        raise NotImplementedError

    def for_currents(self, currents: Currents, *, max_level: int) -> Step:
        """Return the step shaped to broadcast against one instant of ``currents``."""
        del max_level
        step = self()
        if step.numel() == 1:
            return step
        if currents.dim() < 3 or currents.shape[2] != step.numel():
            raise ShapeError(
                f"this neuron has one step for each of {step.numel()} channels, so currents must "
                f"be [T, B, {step.numel()}, ...], got {tuple(currents.shape)}; build the step with "
                f"channels= the channels that arrive here"
            )
        return step.reshape(-1, *[1] * (currents.dim() - 3))  # [C, 1, 1]


class FixedStep(NeuronStep):
    """A step that is not trained (Delta_b): a buffer, not a parameter.

    Args:
        value: the step.
        channels: number of channels for one step each; None for one step for the layer.

    Example:
        >>> neuron = lbq.BurstLIF(step=lbq.FixedStep(0.25))
        >>> [name for name, _ in neuron.named_parameters()]
        ['surrogate.raw_tail']
    """

    def __init__(self, value: float = 1.0, *, channels: int | None = None) -> None:
        super().__init__()
        self.value: Tensor
        self.register_buffer("value", _filled(value, channels))

    def forward(self) -> Step:
        """Return the stored step."""
        return self.value

    @torch.no_grad()
    def set_(self, value: Tensor) -> None:
        """Store other values."""
        self.value.copy_(check_step(value))

    def extra_repr(self) -> str:
        """Show the step."""
        return _describe(self.value)


class LearnedStep(NeuronStep):
    """A step learned with the weights: gamma = softplus(rho) + eps.

    Args:
        init: the step to start from (docs/decisions/0001).
        channels: number of channels for one step each; None for one step for the layer (paper).
        gradient_scale: "none" (the paper; docs/decisions/0004), or "lsq" to multiply the step's
            gradient by 1 / sqrt(numel * max_level).
        eps: smallest distance of the step from zero (epsilon).

    Example:
        >>> lbq.LearnedStep(0.25, channels=3)()
        tensor([0.2500, 0.2500, 0.2500], grad_fn=<AddBackward0>)
    """

    def __init__(
        self,
        init: float = 1.0,
        *,
        channels: int | None = None,
        gradient_scale: GradientScale = "none",
        eps: float = STEP_EPS,
    ) -> None:
        super().__init__()
        check_step_value(init, above=eps)
        if gradient_scale not in ("none", "lsq"):
            raise ParameterError(f'gradient_scale must be "none" or "lsq", got {gradient_scale!r}')
        self.eps = eps
        self.gradient_scale: GradientScale = gradient_scale
        self.raw_step = nn.Parameter(_inverse_softplus(_filled(init, channels) - eps))

    def forward(self) -> Step:
        """Compute the step from its unconstrained parameter (rho), in float32 or better."""
        dtype = torch.promote_types(self.raw_step.dtype, torch.float32)
        return F.softplus(self.raw_step.to(dtype)) + self.eps

    def for_currents(self, currents: Currents, *, max_level: int) -> Step:
        """Return the step shaped for ``currents``, with a scaled gradient for "lsq"."""
        step = super().for_currents(currents, max_level=max_level)
        if self.gradient_scale == "none":
            return step
        scale = 1 / math.sqrt(currents.numel() * max_level)
        return step.detach() + (step - step.detach()) * scale  # the same bits, a smaller gradient

    @torch.no_grad()
    def set_(self, value: Tensor) -> None:
        """Set the parameter so that the step has these values."""
        self.raw_step.copy_(_inverse_softplus(check_step(value, above=self.eps) - self.eps))

    def extra_repr(self) -> str:
        """Show the step."""
        return _describe(self())


def as_step(step: NeuronStep | float | None) -> NeuronStep:
    """Convert a constructor's ``step``: a number is a fixed step, None a learned one."""
    if step is None:
        return LearnedStep()
    return step if isinstance(step, NeuronStep) else FixedStep(step)


def check_step_value(value: float, *, above: float = STEP_EPS) -> float:
    """Return the step; raise unless it is a positive finite number."""
    if not (math.isfinite(value) and value > above):
        raise StepError(
            f"a step must be a finite number above {above:g}, got {value:g}; it is the spacing of "
            f"the levels"
        )
    return value


def check_step(value: Tensor, *, above: float = STEP_EPS) -> Tensor:
    """Return the steps; raise unless all are positive finite numbers."""
    for extreme in (value.min().item(), value.max().item()):
        check_step_value(extreme, above=above)
    return value


def _filled(value: float, channels: int | None) -> Tensor:
    return torch.full((1 if channels is None else channels,), check_step_value(value))


def _inverse_softplus(value: Tensor) -> Tensor:
    return value + (-torch.expm1(-value)).log()


def _describe(step: Tensor) -> str:
    channels = "" if step.numel() == 1 else f", channels={step.numel()}"
    return f"step={format_values(step)}{channels}"
