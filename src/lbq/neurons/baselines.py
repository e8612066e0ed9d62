"""Neurons of other papers: the baselines of the burst neuron.

Each is a declaration (:class:`lbq.NeuronSpec`). The kernels are differentiable once; the loop in
plain torch takes every transform of torch and is chosen by
``lbq.kernels.force_implementation("plain")``.

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

import torch
from torch import Tensor, nn

from lbq.errors import TimeError
from lbq.functional.membrane import mix_timesteps
from lbq.kernels.neuron_spec import NeuronSpec, Plateau, Window
from lbq.kernels.scan import check_carry, neuron_scan
from lbq.kernels.scan_interface import ScanOptions
from lbq.neurons.neuron import Decay, Neuron, at_least_float32, check_reset, scalar
from lbq.neurons.step import FixedStep, NeuronStep, as_step, check_step_value
from lbq.neurons.surrogates import BoxET, Surrogate
from lbq.types import Bursts, Carry, Currents, Levels, ResetMode


class BinaryLIF(Neuron):
    """A leaky neuron that emits 0 or 1 per timestep.

    Its reset is subtracted after the decay (Eq. 1), unlike the burst neuron's. Emitted spikes are
    detached. The carry is the last membrane.

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
        self.window = Window("arctangent", 1 / sharpness)
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.threshold: Tensor
        self.reset: Tensor
        self.register_buffer("threshold", scalar(check_step_value(threshold)))
        self.register_buffer("reset", scalar(check_reset(reset)))

    def spec(self) -> NeuronSpec:
        """Declare Eqs. 1-2."""
        threshold = at_least_float32(self.threshold)
        return NeuronSpec(
            thresholds=threshold,
            is_strict=True,
            decay=self.decay(),
            amount=at_least_float32(self.reset) * threshold,
            after_decay=True,
            surrogate=self.window,
        )


class HardResetLIF(Neuron):
    """A leaky neuron that emits 0 or 1 per timestep and forgets its membrane when it fires.

    This is the neuron of most spiking transformers. SpikingJelly's LIF with a decaying input, a
    time constant of 2 and threshold v has ``V = V + (I - V) / 2``; the membrane here is twice that
    one, with decay 0.5 and threshold 2 v. The reset has no gradient; the gradient of the emission
    is an arctangent's.

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
        self.window = Window("arctangent", 1 / sharpness)
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.threshold: Tensor
        self.register_buffer("threshold", scalar(check_step_value(threshold)))

    def spec(self) -> NeuronSpec:
        """Declare the neuron."""
        return NeuronSpec(
            thresholds=self.threshold, decay=self.decay(), reset="zero", surrogate=self.window
        )


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
        self.options = ScanOptions(
            max_level=1, lo=self.surrogate.lo, hi=self.surrogate.hi(1), reset_mode=reset_mode
        )
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.reset: Tensor
        self.register_buffer("reset", scalar(check_reset(reset)))

    def spec(self) -> NeuronSpec:
        """Declare the neuron."""
        return NeuronSpec(
            step=self.step,
            max_level=1,
            negative="mirrored",
            decay=self.decay(),
            reset=self.options.reset_mode,
            amount=self.reset,
            surrogate=self.surrogate.plateau(1),
        )


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

    def spec(self) -> NeuronSpec:
        """Declare the neuron."""
        return NeuronSpec(
            thresholds=(self.THRESHOLD,),
            negative="mirrored",
            scale=self.step,
            decay=self.decay(),
            reset="zero",
            resets_with_gradient=True,
            surrogate=Plateau(-1, 1),
        )


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
        self.decay = Decay(decay, tau=tau, default=0.25)

    def spec(self) -> NeuronSpec:
        """Declare the neuron; odd levels begin above the half, where halves round to even."""
        levels = range(1, self.max_level + 1)
        return NeuronSpec(
            thresholds=[level - 0.5 for level in levels],
            is_strict=tuple(level % 2 == 1 for level in levels),
            scale=self.scale,
            decay=self.decay(),
            reset="level",
            surrogate=Plateau(0, self.max_level),
        )


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
        self.thresholds: Tensor
        self.register_buffer("thresholds", first_threshold + torch.arange(max_level).float())

    def specs(self) -> list[NeuronSpec]:
        """Declare the K neurons of one membrane and one threshold each."""
        decay, surrogate = self.decay(), Window("box", 1.0)
        return [
            NeuronSpec(
                thresholds=threshold, is_strict=True, decay=decay, reset="zero", surrogate=surrogate
            )
            for threshold in self.thresholds.split(1)
        ]

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Add up the outputs of the K neurons."""
        check_carry(carry, (self.max_level, *currents.shape[1:]))
        carries = [None] * self.max_level if carry is None else carry.unbind(0)
        found = [neuron_scan(currents, *each) for each in zip(self.specs(), carries, strict=True)]
        bursts, levels, carries = zip(*found, strict=True)
        return (
            torch.stack(bursts).sum(0),
            torch.stack(levels).sum(0, dtype=torch.uint8),
            torch.stack(carries),
        )


class LMHT(Neuron):
    """Every timestep integrates a learned mixture of the currents of *all* timesteps.

    The thresholds are fixed multiples of ``2 / max_level`` (1.0 at one level); the leak is learned
    around 1; the reset removes the whole emission. No gradient passes between timesteps other than
    through the mixture. A neuron that needs the future cannot be streamed.

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

    def spec(self) -> NeuronSpec:
        """Declare the neuron behind the mixture."""
        return NeuronSpec(
            step=self.step,
            max_level=self.max_level,
            decay=torch.sigmoid(at_least_float32(self.raw_leak)) + 0.5,
            reset="level",
            detach_carry=True,
            surrogate=Plateau(0.5, self.max_level + 0.5),
        )

    def mixture(self) -> Tensor:
        """Return the share of every timestep's current in every other's, ``[T, T]``."""
        return 2 * torch.sigmoid(at_least_float32(self.raw_mixture)) / self.timesteps

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Mix the timesteps, then run them as one operation."""
        if carry is not None or len(currents) != self.timesteps:
            raise TimeError(
                f"LMHT mixes all of its {self.timesteps} timesteps, so it takes whole sequences of "
                f"that length, got {len(currents)}{' and a carry' if carry is not None else ''}; "
                f"build it with timesteps={len(currents)}, or stream with BurstLIF"
            )
        mixed = mix_timesteps(at_least_float32(currents), self.mixture())
        bursts, levels, carry = neuron_scan(mixed, self.spec())
        return bursts.to(currents.dtype), levels, carry
