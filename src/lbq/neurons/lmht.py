"""LM-HT: equidistant thresholds behind a learned mixing of the timesteps.

Hao et al., "LM-HT SNN: Enhancing the Performance of SNN to ANN Counterpart through Learnable
Multi-hierarchical Threshold Model", NeurIPS 2024.
"""

import torch
from torch import Tensor, nn

from lbq.errors import TimeError
from lbq.functional.quantize import burst_level
from lbq.functional.surrogate import soft_level, straight_through
from lbq.neurons.neuron import Neuron, scalar
from lbq.neurons.sequence import TimestepOutput, scan_over_time
from lbq.types import Bursts, Carry, Currents, Levels


class LMHT(Neuron):
    """Every timestep integrates a learned mixture of the currents of *all* timesteps.

    The thresholds are fixed multiples of ``2 / max_level`` (1.0 at one level); the leak is learned
    around 1; the reset removes the whole emission. No gradient passes between timesteps other than
    through the mixture. A neuron that needs the future cannot be streamed.

    Args:
        timesteps: length of the sequences (T); the mixture is a T x T matrix.
        max_level: number of thresholds (L), 2 in the paper's comparison.
    """

    def __init__(self, timesteps: int, max_level: int = 2) -> None:
        super().__init__(max_level)
        if timesteps < 1:
            raise TimeError(f"LMHT needs at least one timestep, got timesteps={timesteps}")
        self.timesteps = timesteps
        self.raw_leak = nn.Parameter(scalar(0.0))
        self.raw_mixture = nn.Parameter(torch.zeros(timesteps, timesteps))
        self.step: Tensor
        self.register_buffer("step", scalar(1.0 if max_level == 1 else 2.0 / max_level))

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Mix the timesteps, then loop over them in plain torch."""
        if carry is not None or len(currents) != self.timesteps:
            raise TimeError(
                f"LMHT mixes all of its {self.timesteps} timesteps, so it takes whole sequences of "
                f"that length, got {len(currents)}{' and a carry' if carry is not None else ''}; "
                f"build it with timesteps={len(currents)}, or stream with BurstLIF"
            )
        dtype = torch.promote_types(currents.dtype, torch.float32)
        leak = torch.sigmoid(self.raw_leak.to(dtype)) + 0.5
        mixture = 2 * torch.sigmoid(self.raw_mixture.to(dtype)) / self.timesteps
        flat = currents.to(dtype).flatten(1)  # [T, B n]
        rows = [(row.unsqueeze(1) * flat).sum(0) for row in mixture]  # a product autocast ignores
        mixed = torch.stack(rows).reshape(currents.shape)  # [T, B, *n]
        step, lo, hi = self.step.to(dtype), 0.5, self.max_level + 0.5

        def instant(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = leak * state.detach() + current
            level = burst_level(membrane, step, max_level=self.max_level)
            soft = soft_level(membrane / step, lo=lo, hi=hi)
            burst = straight_through(level, soft, step)
            return TimestepOutput(burst, level, membrane - burst.detach())

        bursts, levels, carry = scan_over_time(instant, mixed, None)
        return bursts.to(currents.dtype), levels, carry
