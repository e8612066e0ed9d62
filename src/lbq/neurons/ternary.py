"""Ternary neurons: the paper's baseline in our framework, and the original it was taken from.

Guo et al., "Ternary Spike: Learning Ternary Spikes for Spiking Neural Networks", AAAI 2024.
"""

import torch
from torch import Tensor

from lbq.functional.membrane import check_reset_mode, integrate, soft_reset
from lbq.functional.quantize import ternary_level
from lbq.functional.surrogate import soft_level, straight_through
from lbq.neurons.neuron import Decay, Neuron, check_reset, scalar
from lbq.neurons.sequence import TimestepOutput, scan_over_time
from lbq.neurons.step import FixedStep, NeuronStep, as_step
from lbq.neurons.surrogates import BoxET, Surrogate
from lbq.types import Bursts, Carry, Currents, Levels, ResetMode


class TernaryLIF(Neuron):
    """A leaky neuron that emits -1, 0 or 1 and sends ``step * level`` on.

    The step is threshold and scale at once, as the burst neuron's: ``TernaryLIF()`` is the paper's
    "Ternary, fixed", ``TernaryLIF(step=LearnedStep())`` its "Ternary, learnable". Everything is
    the burst neuron's, mirrored at zero.

    Args:
        step: threshold and output scale; a number, or nothing (1.0), means a fixed step.
        surrogate: the soft level that carries the gradient, applied to the membrane's size.
        decay: share of the carry that survives a timestep (beta), 0.5 unless said.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
        reset: share of a step that an emission takes from the membrane's size (alpha).
        reset_mode: "event" (one step) or "none"; "level" is the same as "event" here.
    """

    is_signed = True

    def __init__(
        self,
        *,
        step: NeuronStep | float | None = None,
        surrogate: Surrogate | None = None,
        decay: float | None = None,
        tau: float | None = None,
        reset: float = 1.0,
        reset_mode: ResetMode = "event",
    ) -> None:
        super().__init__(max_level=1)
        self.step = FixedStep() if step is None else as_step(step)
        self.surrogate = BoxET() if surrogate is None else surrogate
        self.reset_mode: ResetMode = check_reset_mode(reset_mode)
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.reset: Tensor
        self.register_buffer("reset", scalar(check_reset(reset)))

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Loop over the timesteps in plain torch."""
        step = self.step.for_currents(currents, max_level=1)
        decay, tail = self.decay(), self.surrogate.tail()
        lo, hi = self.surrogate.lo, self.surrogate.hi(1)

        def instant(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = integrate(state, current, decay=decay)
            level = ternary_level(membrane, step)
            sign = membrane.detach().sign()
            soft = sign * soft_level(sign * membrane / step, lo=lo, hi=hi, tail=tail)
            state = soft_reset(membrane, level, step=step, reset=self.reset, mode=self.reset_mode)
            return TimestepOutput(straight_through(level, soft, step), level, state)

        return scan_over_time(instant, currents, carry, level_dtype=torch.int8)


class OriginalTernaryLIF(Neuron):
    """The ternary neuron as published: threshold 0.5, hard reset, a learned amplitude behind it.

    The amplitude scales what is sent on and leaves the threshold alone; deployment absorbs it like
    a step. The gradient is 1 where the membrane's size is at most 1, and flows through the reset.

    Args:
        step: the amplitude; nothing means a learned one, starting at 1.0.
        decay: share of the carry that survives a timestep, 0.25 unless said.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
    """

    THRESHOLD = 0.5
    is_signed = True
    step_sets_levels = False

    def __init__(
        self,
        *,
        step: NeuronStep | float | None = None,
        decay: float | None = None,
        tau: float | None = None,
    ) -> None:
        super().__init__(max_level=1)
        self.step = as_step(step)
        self.decay = Decay(decay, tau=tau, default=0.25)

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Loop over the timesteps in plain torch."""
        amplitude = self.step.for_currents(currents, max_level=1)
        threshold = amplitude.new_full((1,), self.THRESHOLD)
        decay, one = self.decay(), amplitude.new_ones(1)

        def instant(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = integrate(state, current, decay=decay)
            level = ternary_level(membrane, threshold)
            spike = straight_through(level, membrane.clamp(-1, 1), one)
            return TimestepOutput(amplitude * spike, level, membrane * (1 - spike.abs()))

        return scan_over_time(instant, currents, carry, level_dtype=torch.int8)
