"""The binary neuron of the paper's preliminaries, with an arctangent surrogate (Eqs. 1-2)."""

import torch
from torch import Tensor

from lbq.functional.membrane import lif_membrane
from lbq.functional.quantize import binary_spike
from lbq.functional.surrogate import arctan_soft_spike, straight_through
from lbq.neurons.neuron import Decay, Neuron, check_reset, scalar
from lbq.neurons.sequence import TimestepOutput, scan_over_time
from lbq.neurons.step import check_step_value
from lbq.types import Bursts, Carry, Currents, Levels


class BinaryLIF(Neuron):
    """A leaky neuron that emits 0 or 1 per timestep and sends it on unscaled.

    Its reset is subtracted after the decay (Eq. 1), unlike the burst neuron's, and carries no
    gradient, as everywhere in this library. The carry is the last membrane.

    Args:
        threshold: firing threshold (V_theta).
        decay: share of the membrane that survives a timestep (beta), 0.5 unless said.
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
        self.sharpness = sharpness
        self.decay = Decay(decay, tau=tau, default=0.5)
        self.threshold: Tensor
        self.reset: Tensor
        self.register_buffer("threshold", scalar(check_step_value(threshold)))
        self.register_buffer("reset", scalar(check_reset(reset)))

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Loop over the timesteps in plain torch."""
        decay, one = self.decay(), torch.ones_like(self.threshold)

        def instant(membrane: Tensor, current: Tensor) -> TimestepOutput:
            membrane = lif_membrane(
                membrane,
                current,
                spike=binary_spike(membrane, threshold=self.threshold),
                decay=decay,
                threshold=self.threshold,
                reset=self.reset,
            )
            level = binary_spike(membrane, threshold=self.threshold)
            soft = arctan_soft_spike(membrane, threshold=self.threshold, sharpness=self.sharpness)
            return TimestepOutput(straight_through(level, soft, one), level, membrane)

        return scan_over_time(instant, currents, carry)
