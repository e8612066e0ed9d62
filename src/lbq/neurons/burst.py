"""The burst neuron: leaky integration, integer levels, a fixed or learned step."""

from typing import Literal

import torch
from torch import Tensor

from lbq.errors import ParameterError
from lbq.kernels.scan import burst_scan
from lbq.kernels.scan_interface import Keep, ScanOptions
from lbq.neurons.neuron import Decay, Neuron, check_reset, scalar
from lbq.neurons.step import NeuronStep, as_step
from lbq.neurons.surrogates import ReLSGET, Surrogate
from lbq.types import Bursts, Carry, Currents, Levels, ResetMode

LevelSet = Literal["all", "powers"]


class BurstLIF(Neuron):
    """A leaky neuron that emits a level 0..N per timestep and outputs ``step * level``.

    The paper's ablation::

        V1   BurstLIF(step=FixedStep(), surrogate=BoxET())
        V2   BurstLIF(step=FixedStep(), surrogate=ReLSGET())
        V3   BurstLIF(step=LearnedStep(), surrogate=BoxET())
        LBQ  BurstLIF(step=LearnedStep(), surrogate=ReLSGET())      the default

    Args:
        max_level: the largest level (N_max), 1..255.
        step: spacing of the levels (gamma); a number means a fixed step.
        surrogate: the soft level that carries the gradient (B).
        decay: share of the carry that survives a timestep (beta), 0.5 by default.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
        reset: share of a step that emission removes (alpha), 0..1.
        reset_mode: "event" removes it once whatever the level (the paper; docs/decisions/0003),
            "level" once per level, as multi-spike hardware does, "none" never.
        learn_decay: train the decay, as the sigmoid of a parameter; needs 0 < decay < 1.
        detach_reset: keep the step inside the reset out of the gradient.
        detach_carry: stop the gradient between timesteps.
        level_set: "all" levels 0..N, or "powers" of two, 0, 1, 2, 4 .. N, with levels between
            rounded down, so that every level costs one accumulation.
        keep: what is saved for the backward pass on CPUs, "membranes" (4 bytes per neuron and
            timestep) or "currents" (2 bytes in bfloat16; repeated timesteps share them).
            With "currents" membranes are computed again; the gradients are the same.

    Example:
        >>> neuron = lbq.BurstLIF(max_level=3, step=0.5)
        >>> currents = torch.tensor([0.2, 0.6, 1.2, 9.0]).reshape(1, 1, 4)  # [T, B, n]
        >>> neuron(currents).detach()  # whole steps of 0.5, three at most
        tensor([[[0.0000, 0.5000, 1.0000, 1.5000]]])
    """

    def __init__(
        self,
        max_level: int = 5,
        *,
        step: NeuronStep | float | None = None,
        surrogate: Surrogate | None = None,
        decay: float | None = None,
        tau: float | None = None,
        reset: float = 1.0,
        reset_mode: ResetMode = "event",
        learn_decay: bool = False,
        detach_reset: bool = False,
        detach_carry: bool = False,
        level_set: LevelSet = "all",
        keep: Keep = "membranes",
    ) -> None:
        super().__init__(max_level)
        self.level_set: LevelSet = level_set
        if level_set not in ("all", "powers") or (
            level_set == "powers" and max_level.bit_count() > 1
        ):
            raise ParameterError(
                f'level_set must be "all", or "powers" with max_level a power of two, got '
                f"{level_set!r} and max_level={max_level}"
            )
        self.step = as_step(step)
        self.surrogate = ReLSGET() if surrogate is None else surrogate
        self.options = ScanOptions(
            max_level=max_level,
            lo=self.surrogate.lo,
            hi=self.surrogate.hi(max_level),
            reset_mode=reset_mode,
            detach_reset=detach_reset,
            detach_carry=detach_carry,
            keep=keep,
        )
        if self.options.hi <= self.options.lo and self.surrogate.tail() is None:
            raise ParameterError(
                f"{type(self.surrogate).__name__} has an empty plateau "
                f"[{self.options.lo}, {self.options.hi}] and no tails at max_level={max_level}, so "
                f"no gradient flows; use BoxET or ReLSGET"
            )
        self.decay = Decay(decay, tau=tau, default=0.5, learn=learn_decay)
        self.reset: Tensor
        self.register_buffer("reset", scalar(check_reset(reset)))

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Run the whole sequence as one operation."""
        step = self.step.for_currents(currents, max_level=self.max_level)
        bursts, levels, carry = burst_scan(
            currents,
            step,
            tail=self.surrogate.tail(),
            decay=self.decay(),
            reset=self.reset,
            carry=carry,
            options=self.options,
        )
        if self.level_set == "powers":
            kept = levels_kept(self.max_level).to(levels.device)[levels.int()]
            size = step.reshape(-1, *[1] * (levels.dim() - 3)) if step.numel() > 1 else step
            bursts, levels = bursts - size * (levels - kept), kept
        return bursts, levels, carry


def levels_kept(max_level: int) -> Tensor:
    """Return the largest power of two up to every level 0..N."""
    powers = (1 << (level.bit_length() - 1) if level else 0 for level in range(max_level + 1))
    return torch.tensor([*powers], dtype=torch.uint8)
