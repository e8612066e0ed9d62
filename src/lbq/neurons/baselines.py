"""Neurons of other papers: the baselines of the burst neuron.

Each is a loop over time in plain torch; kernels for CPUs and GPUs run instead where they can. The
kernels are differentiable once. The loop supports every transform of torch;
``lbq.kernels.force_implementation("plain")`` selects it.

- :class:`BinaryLIF`: the paper's preliminaries (Eqs. 1-2), with an arctangent surrogate.
- :class:`HardResetLIF`: the neuron of Spikformer, QKFormer and Max-Former.
- :class:`TernaryLIF`, :class:`OriginalTernaryLIF`: Guo et al., "Ternary Spike: Learning Ternary
  Spikes for Spiking Neural Networks", AAAI 2024.
- :class:`IntegerLIF` (I-LIF): Luo et al., "Integer-Valued Training and Spike-Driven Inference
  Spiking Neural Network for High-performance and Energy-efficient Object Detection", ECCV 2024.
- :class:`MultiLevelLIF` (MLF): Feng et al., "Multi-Level Firing with Spiking DS-ResNet", IJCAI
  2022.
- :class:`LMHT`: Hao et al., "LM-HT SNN: Enhancing the Performance of SNN to ANN Counterpart through
  Learnable Multi-hierarchical Threshold Model", NeurIPS 2024.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lbq.errors import TimeError
from lbq.functional.membrane import check_reset_mode, integrate, lif_membrane, soft_reset
from lbq.functional.quantize import binary_spike, burst_level, ternary_level
from lbq.functional.surrogate import arctan_soft_spike, soft_level, straight_through
from lbq.kernels.baseline_scan import BaselineArguments, BaselineOptions
from lbq.kernels.scan import baseline_scan, burst_scan, check_carry, check_currents
from lbq.kernels.scan_interface import ScanOptions
from lbq.neurons.neuron import Decay, Neuron, check_reset, scalar
from lbq.neurons.step import FixedStep, NeuronStep, as_step, check_step_value
from lbq.neurons.surrogates import BoxET, Surrogate
from lbq.types import Bursts, Carry, Currents, Levels, ResetMode


class TimestepOutput(NamedTuple):
    """Result of one timestep."""

    burst: Tensor
    level: Tensor
    carry: Tensor


def scan_over_time(
    update: Callable[[Tensor, Tensor], TimestepOutput],
    currents: Currents,
    carry: Carry | None,
    *,
    kernel: BaselineArguments | None = None,
    num_membranes: int | None = None,
    level_dtype: torch.dtype = torch.uint8,
) -> tuple[Bursts, Levels, Carry]:
    """Call ``update(carry, current)`` for every timestep and stack the results.

    Half-precision currents are computed in float32, as in :func:`lbq.kernels.scan.burst_scan`.

    Args:
        update: one timestep of the neuron.
        currents: the sequence.
        carry: initial state; None for rest.
        kernel: the same neuron for the native and GPU kernels, which run instead where they can.
        num_membranes: for a carry of ``[num_membranes, B, *n]``; None for ``[B, *n]``.
        level_dtype: how the levels are stored.
    """
    check_currents(currents)
    leading = () if num_membranes is None else (num_membranes,)
    check_carry(carry, (*leading, *currents.shape[1:]))
    dtype = compute_dtype(currents)
    carry = None if carry is None else carry.to(dtype)
    done = None if kernel is None else baseline_scan(currents, carry, kernel)
    if done is not None:
        return done
    exact = currents.to(dtype)
    if carry is None:
        carry = torch.zeros_like(exact[0]).expand(*leading, *currents.shape[1:])
    bursts: list[Tensor] = []
    levels: list[Tensor] = []
    for current in exact.unbind(0):
        burst, level, carry = update(carry, current)
        bursts.append(burst)
        levels.append(level.detach().to(level_dtype))
    return torch.stack(bursts).to(currents.dtype), torch.stack(levels), carry


def compute_dtype(currents: Currents) -> torch.dtype:
    """Return the dtype of membranes and coefficients: float32 or better."""
    return torch.promote_types(currents.dtype, torch.float32)


class BinaryLIF(Neuron):
    """A leaky neuron that emits 0 or 1 per timestep.

    Its reset is subtracted after the decay (Eq. 1), unlike the burst neuron's. No gradient passes
    the spike in the reset. The carry is the last membrane.

    Args:
        threshold: firing threshold (V_theta).
        decay: share of the membrane that survives a timestep (beta), 0.5 by default.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
        reset: share of the threshold that a spike removes (alpha).
        sharpness: how steep the surrogate is at the threshold.
    """

    def __init__(
        self,
        *,
        threshold: float = 1.0,
        decay: float | None = None,
        tau: float | None = None,
        reset: float = 1.0,
        sharpness: float = 2.0,
    ) -> None:
        super().__init__(max_level=1)
        self.options = BaselineOptions(neuron="binary", sharpness=sharpness)
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.threshold: Tensor
        self.reset: Tensor
        self.register_buffer("threshold", scalar(check_step_value(threshold)))
        self.register_buffer("reset", scalar(check_reset(reset)))

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Run the sequence; one timestep is Eqs. 1-2."""
        dtype = compute_dtype(currents)
        decay, reset = self.decay().to(dtype), self.reset.to(dtype)
        threshold = self.threshold.to(dtype)
        one, sharpness = torch.ones_like(threshold), self.options.sharpness

        def update(membrane: Tensor, current: Tensor) -> TimestepOutput:
            membrane = lif_membrane(
                membrane,
                current,
                spike=binary_spike(membrane, threshold=threshold),
                decay=decay,
                threshold=threshold,
                reset=reset,
            )
            level = binary_spike(membrane, threshold=threshold)
            soft = arctan_soft_spike(membrane, threshold=threshold, sharpness=sharpness)
            return TimestepOutput(straight_through(level, soft, one), level, membrane)

        kernel = BaselineArguments(self.options, one, decay, reset, threshold)
        return scan_over_time(update, currents, carry, kernel=kernel)


class HardResetLIF(Neuron):
    """A leaky neuron that emits 0 or 1 per timestep and forgets its membrane when it fires.

    This is the neuron of most spiking transformers. SpikingJelly's LIF with a decaying input, a
    time constant of 2 and threshold v computes ``V = V + (I - V) / 2``. It emits the same spikes
    as this neuron with decay 0.5 and threshold 2 v, whose membrane is twice as large. No gradient
    passes the reset. The gradient of a spike is the derivative of an arctangent.

    Args:
        threshold: firing threshold, 2.0 by default.
        decay: share of the carry that survives a timestep, 0.5 by default.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
        sharpness: how steep the surrogate is at the threshold.
    """

    def __init__(
        self,
        *,
        threshold: float = 2.0,
        decay: float | None = None,
        tau: float | None = None,
        sharpness: float = 2.0,
    ) -> None:
        super().__init__(max_level=1)
        self.options = BaselineOptions(neuron="hard reset", sharpness=sharpness)
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.threshold: Tensor
        self.register_buffer("threshold", scalar(check_step_value(threshold)))

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Run the sequence."""
        dtype = compute_dtype(currents)
        decay, threshold = self.decay().to(dtype), self.threshold.to(dtype)
        one, sharpness = torch.ones_like(threshold), self.options.sharpness

        def update(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = integrate(state, current, decay=decay)
            level = burst_level(membrane, threshold, max_level=1)
            soft = arctan_soft_spike(membrane, threshold=threshold, sharpness=sharpness)
            return TimestepOutput(straight_through(level, soft, one), level, membrane * (1 - level))

        kernel = BaselineArguments(self.options, one, decay, thresholds=threshold)
        return scan_over_time(update, currents, carry, kernel=kernel)


class TernaryLIF(Neuron):
    """A leaky neuron with levels -1, 0 and 1 and output ``step * level``.

    This baseline of the paper is the burst neuron mirrored at zero: the step is threshold and
    scale. ``TernaryLIF()`` is the paper's "Ternary, fixed", ``TernaryLIF(step=LearnedStep())`` its
    "Ternary, learnable".

    Args:
        step: threshold and output scale; a number means a fixed step, 1.0 by default.
        surrogate: the soft level that carries the gradient, applied to the membrane's size.
        decay: share of the carry that survives a timestep (beta), 0.5 by default.
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
        self.options = BaselineOptions(
            neuron="ternary",
            lo=self.surrogate.lo,
            hi=self.surrogate.hi(1),
            reset_mode=check_reset_mode(reset_mode),
        )
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.reset: Tensor
        self.register_buffer("reset", scalar(check_reset(reset)))

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Run the sequence."""
        dtype = compute_dtype(currents)
        step = self.step.for_currents(currents, max_level=1).to(dtype)
        decay, reset, tail = self.decay().to(dtype), self.reset.to(dtype), self.surrogate.tail()
        tail = None if tail is None else tail.to(dtype)
        lo, hi = self.options.lo, self.options.hi

        def update(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = integrate(state, current, decay=decay)
            level = ternary_level(membrane, step)
            sign = membrane.detach().sign()
            soft = sign * soft_level(sign * membrane / step, lo=lo, hi=hi, tail=tail)
            state = soft_reset(
                membrane, level, step=step, reset=reset, mode=self.options.reset_mode
            )
            return TimestepOutput(straight_through(level, soft, step), level, state)

        kernel = BaselineArguments(self.options, step, decay, reset, tail=tail)
        return scan_over_time(update, currents, carry, kernel=kernel, level_dtype=torch.int8)


class OriginalTernaryLIF(Neuron):
    """The ternary neuron as published: threshold 0.5, hard reset, a learned output amplitude.

    Deployment absorbs the amplitude like a step. The gradient is 1 where the absolute membrane is
    at most 1, and flows through the reset.

    Args:
        step: the amplitude; by default a learned one, starting at 1.0.
        decay: share of the carry that survives a timestep, 0.25 by default.
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
        self.options = BaselineOptions(neuron="original ternary")
        self.decay = Decay(decay, tau=tau, default=0.25)

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Run the sequence."""
        dtype = compute_dtype(currents)
        amplitude = self.step.for_currents(currents, max_level=1).to(dtype)
        threshold = amplitude.new_full((1,), self.THRESHOLD)
        decay, one = self.decay().to(dtype), amplitude.new_ones(1)

        def update(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = integrate(state, current, decay=decay)
            level = ternary_level(membrane, threshold)
            spike = straight_through(level, membrane.clamp(-1, 1), one)
            return TimestepOutput(amplitude * spike, level, membrane * (1 - spike.abs()))

        kernel = BaselineArguments(self.options, amplitude, decay, thresholds=threshold)
        return scan_over_time(update, currents, carry, kernel=kernel, level_dtype=torch.int8)


class IntegerLIF(Neuron):
    """A leaky neuron whose level is the membrane rounded to 0..D.

    Rounding means thresholds at 0.5, 1.5, ..., half to even; the reset removes the whole level,
    without gradient; the gradient of the emission is a box over [0, D]. The neuron of E-SpikeFormer
    is ``IntegerLIF(4, decay=0.0, is_normalised=True)``.

    Args:
        max_level: the largest level (D), 4 in the original.
        decay: share of the carry that survives a timestep, 0.25 by default.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
        is_normalised: send ``level / D`` instead of the level itself.
    """

    def __init__(
        self,
        max_level: int = 4,
        *,
        decay: float | None = None,
        tau: float | None = None,
        is_normalised: bool = False,
    ) -> None:
        super().__init__(max_level)
        self.scale = 1 / max_level if is_normalised else 1.0
        self.options = BaselineOptions(neuron="integer", max_level=max_level)
        self.decay = Decay(decay, tau=tau, default=0.25)

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Run the sequence."""
        decay = self.decay().to(compute_dtype(currents))
        scale = decay.new_full((1,), self.scale)

        def update(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = integrate(state, current, decay=decay)
            soft = soft_level(membrane, lo=0.0, hi=float(self.max_level))
            level = soft.detach().round()
            return TimestepOutput(straight_through(level, soft, scale), level, membrane - level)

        kernel = BaselineArguments(self.options, scale, decay)
        return scan_over_time(update, currents, carry, kernel=kernel)


class MultiLevelLIF(Neuron):
    """K leaky membranes fed by one current; the level is the number of them that fire.

    Membrane k fires above ``first_threshold + k`` and is reset to zero when it did. Each spike's
    gradient is 1 within half a unit of its threshold. The carry is ``[K, B, *n]``.

    Args:
        max_level: number of membranes (K), 3 in the original.
        first_threshold: the lowest threshold.
        decay: share of a membrane that survives a timestep, 0.25 by default.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
    """

    def __init__(
        self,
        max_level: int = 3,
        *,
        first_threshold: float = 0.6,
        decay: float | None = None,
        tau: float | None = None,
    ) -> None:
        super().__init__(max_level)
        self.decay = Decay(decay, tau=tau, default=0.25)
        self.options = BaselineOptions(neuron="multi-level", max_level=max_level)
        self.thresholds: Tensor
        self.register_buffer("thresholds", first_threshold + torch.arange(max_level).float())

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Run the sequence."""
        dtype = compute_dtype(currents)
        decay, fixed = self.decay().to(dtype), self.thresholds.to(dtype)
        one = torch.ones_like(decay)
        thresholds = fixed.reshape(-1, *[1] * (currents.dim() - 1))  # [K, 1, ...]

        def update(state: Tensor, current: Tensor) -> TimestepOutput:
            membranes = integrate(state, current.expand_as(state), decay=decay)  # [K, B, *n]
            spikes = binary_spike(membranes, threshold=thresholds)
            soft = soft_level(membranes - thresholds, lo=-0.5, hi=0.5)
            bursts = straight_through(spikes, soft, one)
            state = membranes * (1 - spikes)
            return TimestepOutput(bursts.sum(0), spikes.sum(0), state)

        kernel = BaselineArguments(self.options, one, decay, thresholds=fixed)
        return scan_over_time(update, currents, carry, kernel=kernel, num_membranes=self.max_level)


class LMHT(Neuron):
    """Every timestep integrates a learned mixture of the currents of *all* timesteps.

    The thresholds are fixed multiples of ``2 / max_level`` (1.0 at one level). The decay is learned
    between 0.5 and 1.5 and starts at 1, where nothing leaks. The reset removes the whole emission.
    No gradient passes between timesteps other than through the mixture. A neuron that needs the
    future cannot be streamed.

    Args:
        timesteps: length of the sequences (T); the mixture is a T x T matrix.
        max_level: number of thresholds (L), 2 in the paper's comparison.
    """

    needs_whole_sequence = True

    def __init__(self, timesteps: int, max_level: int = 2) -> None:
        super().__init__(max_level)
        if timesteps < 1:
            raise TimeError(f"LMHT needs at least one timestep, got timesteps={timesteps}")
        self.timesteps = timesteps
        self.raw_leak = nn.Parameter(scalar(0.0))
        self.raw_mixture = nn.Parameter(torch.zeros(timesteps, timesteps))
        self.step: Tensor
        self.register_buffer("step", scalar(1.0 if max_level == 1 else 2.0 / max_level))
        self.options = ScanOptions(
            max_level=max_level,
            lo=0.5,
            hi=max_level + 0.5,
            reset_mode="level",
            detach_carry=True,
        )
        self.kernel_options = BaselineOptions(
            neuron="mixed", max_level=max_level, lo=self.options.lo, hi=self.options.hi
        )

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Mix the timesteps, then run them as one operation."""
        if carry is not None or len(currents) != self.timesteps:
            raise TimeError(
                f"LMHT mixes all of its {self.timesteps} timesteps, so it takes whole sequences of "
                f"that length, got {len(currents)}{' and a carry' if carry is not None else ''}; "
                f"build it with timesteps={len(currents)}, or stream with BurstLIF"
            )
        dtype = compute_dtype(currents)
        step, leak = self.step.to(dtype), torch.sigmoid(self.raw_leak.to(dtype)) + 0.5
        mixture = 2 * torch.sigmoid(self.raw_mixture.to(dtype)) / self.timesteps
        kernel = BaselineArguments(self.kernel_options, step, leak, mixture=mixture)
        done = baseline_scan(currents, None, kernel)
        if done is not None:
            return done
        mixed = self._mix(currents.to(dtype), mixture)
        bursts, levels, carry = burst_scan(
            mixed, step, tail=None, decay=leak, reset=1.0, options=self.options
        )
        return bursts.to(currents.dtype), levels, carry

    @staticmethod
    def _mix(currents: Currents, mixture: Tensor) -> Currents:
        """Add up weighted currents in order; autocast would halve the bits of a matrix product."""
        columns = mixture.reshape(*mixture.shape, *[1] * (currents.dim() - 1))  # [T, T, 1, ...]
        mixed = columns[:, 0] * currents[0]
        for t in range(1, len(currents)):
            mixed = mixed + columns[:, t] * currents[t]
        return mixed  # [T, B, *n]
