"""I-LIF: integer levels by rounding, with a full reset.

Luo et al., "Integer-Valued Training and Spike-Driven Inference Spiking Neural Network for
High-performance and Energy-efficient Object Detection", ECCV 2024.
"""

from torch import Tensor

from lbq.functional.membrane import integrate
from lbq.functional.surrogate import soft_level, straight_through
from lbq.neurons.neuron import Decay, Neuron
from lbq.neurons.sequence import TimestepOutput, scan_over_time
from lbq.types import Bursts, Carry, Currents, Levels


class IntegerLIF(Neuron):
    """A leaky neuron that rounds its membrane to 0..D and sends the integer on unscaled.

    Rounding means thresholds at 0.5, 1.5, ...; the reset removes the whole level, without
    gradient; the gradient of the emission is a box over [0, D].

    Args:
        max_level: the largest level (D), 4 in the original.
        decay: share of the carry that survives a timestep, 0.25 unless said.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
    """

    def __init__(
        self, max_level: int = 4, *, decay: float | None = None, tau: float | None = None
    ) -> None:
        super().__init__(max_level)
        self.decay = Decay(decay, tau=tau, default=0.25)

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Loop over the timesteps in plain torch."""
        decay = self.decay()

        def instant(state: Tensor, current: Tensor) -> TimestepOutput:
            membrane = integrate(state, current, decay=decay)
            soft = soft_level(membrane, lo=0.0, hi=float(self.max_level))
            level = soft.detach().round()
            burst = straight_through(level, soft, membrane.new_ones(1))
            return TimestepOutput(burst, level, membrane - level)

        return scan_over_time(instant, currents, carry)
