"""MLF: several membranes with rising thresholds whose spikes are added.

Feng et al., "Multi-Level Firing with Spiking DS-ResNet", IJCAI 2022.
"""

import torch
from torch import Tensor

from lbq.functional.membrane import integrate
from lbq.functional.quantize import binary_spike
from lbq.functional.surrogate import soft_level, straight_through
from lbq.neurons.neuron import Decay, Neuron
from lbq.neurons.sequence import TimestepOutput, scan_over_time
from lbq.types import Bursts, Carry, Currents, Levels


class MultiLevelLIF(Neuron):
    """K leaky membranes fed by one current; the level is how many of them fire.

    Membrane k fires above ``first_threshold + k`` and is reset to zero when it did. Each spike's
    gradient is 1 within half a unit of its threshold. The carry is ``[K, B, *n]``.

    Args:
        max_level: number of membranes (K), 3 in the original.
        first_threshold: the lowest threshold.
        decay: share of a membrane that survives a timestep, 0.25 unless said.
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

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Loop over the timesteps in plain torch."""
        decay = self.decay()
        thresholds = self.thresholds.reshape(-1, *[1] * (currents.dim() - 1))  # [K, 1, ...]

        def instant(state: Tensor, current: Tensor) -> TimestepOutput:
            membranes = integrate(state, current.expand_as(state), decay=decay)  # [K, B, *n]
            spikes = binary_spike(membranes, threshold=thresholds)
            soft = soft_level(membranes - thresholds, lo=-0.5, hi=0.5)
            bursts = straight_through(spikes, soft, membranes.new_ones(1))
            state = membranes * (1 - spikes)
            return TimestepOutput(bursts.sum(0), spikes.sum(0), state)

        dtype = torch.promote_types(currents.dtype, torch.float32)
        rest = currents.new_zeros((self.max_level, *currents.shape[1:]), dtype=dtype)
        return scan_over_time(instant, currents, carry, rest=rest)
