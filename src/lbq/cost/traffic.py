"""Bytes that must move for one image, under a convention simple enough to state.

Both sides hold int8 weights and byte-wide activations and keep nothing between layers: a synapse
reads its weights and its inputs once each time it runs, a neuron writes its level once. At every
timestep all of this happens again, and a burst network also carries its membranes (int32) from one
timestep to the next. Engines that fetch weights per event, or keep layers on chip, differ.
"""

from dataclasses import dataclass

from lbq.cost.count_table import CountTable

_MEMBRANE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes moved for one image."""

    weight_bytes: int
    """Weights read."""
    activation_bytes: int
    """Activations or levels written by neurons and read by synapses."""
    state_bytes: int
    """Membranes written at one timestep and read at the next."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weight_bytes + self.activation_bytes + self.state_bytes


def ann_traffic(table: CountTable) -> Traffic:
    """Count the bytes of the same network as an int8 ANN: everything once, no state."""
    synapses = [synapse for synapse, _ in table.synapses_with_timesteps()]
    reads = sum(synapse.inputs for synapse in synapses)
    return Traffic(
        weight_bytes=sum(synapse.num_weights for synapse in synapses),
        activation_bytes=reads + _num_neurons(table),
        state_bytes=0,
    )


def burst_traffic(table: CountTable) -> Traffic:
    """Count the bytes of the burst network with one-byte levels, over all its timesteps."""
    synapses = list(table.synapses_with_timesteps())
    reads = sum(synapse.inputs * instants for synapse, instants in synapses)
    neurons, passes = _num_neurons(table), table.timesteps - 1
    return Traffic(
        weight_bytes=sum(synapse.num_weights * instants for synapse, instants in synapses),
        activation_bytes=reads + neurons * table.timesteps,
        state_bytes=2 * _MEMBRANE_BYTES * neurons * passes,
    )


def _num_neurons(table: CountTable) -> int:
    return sum({layer.layer: layer.neurons for layer in table.layers}.values())
