"""Neurons of other libraries as modules that map ``[T, B, *n]`` and start from zero, like ours.

Their coefficients are the closest to ours: decay 0.5, unscaled current, a soft reset without
gradient. State is reset before every sequence. ``tests/external/test_neurons.py`` compares them
with our equivalents.
"""

from collections.abc import Callable
from importlib import metadata, util

import torch
from torch import Tensor, nn

PINS = "tests/external/constraints.txt"


def other_neurons(max_level: int) -> dict[str, Callable[[], nn.Module]]:
    """Return builders by name and version; print one line for every library that is missing."""
    found: dict[str, Callable[[], nn.Module]] = {}
    for library, add in (("spikingjelly", _spikingjelly), ("snntorch", _snntorch)):
        if util.find_spec(library):
            found |= add(metadata.version(library), max_level)
        else:
            print(f"no rows for {library}: pip install -c {PINS} {library}")
    return found


class SpikingJellyNeuron(nn.Module):
    """A multi-step node of SpikingJelly."""

    def __init__(self, node: nn.Module) -> None:
        super().__init__()
        self.node = node

    def forward(self, currents: Tensor) -> Tensor:
        """Reset, then map the sequence."""
        self.node.reset()
        return self.node(currents)


class SNNTorchNeuron(nn.Module):
    """A neuron of snnTorch, which runs one timestep at a time."""

    def __init__(self, node: nn.Module) -> None:
        super().__init__()
        self.node = node

    def forward(self, currents: Tensor) -> Tensor:
        """Reset, then run the sequence."""
        membrane, spikes = self.node.reset_mem(), []
        for current in currents:
            spike, membrane = self.node(current, membrane)
            spikes.append(spike)
        return torch.stack(spikes)


def _spikingjelly(version: str, max_level: int) -> dict[str, Callable[[], nn.Module]]:
    from spikingjelly.activation_based import neuron, surrogate  # noqa: PLC0415

    def lif() -> nn.Module:
        return SpikingJellyNeuron(
            neuron.LIFNode(
                tau=2.0,
                decay_input=False,
                v_reset=None,
                surrogate_function=surrogate.ATan(),
                detach_reset=True,
                step_mode="m",
            )
        )

    def integer_lif() -> nn.Module:
        levels = surrogate.MultiLevelSpikeCount(max_level)
        return SpikingJellyNeuron(
            neuron.ILIFNode(tau=2.0, surrogate_function=levels, detach_reset=True, step_mode="m")
        )

    return {f"SpikingJelly {version} LIF": lif, f"SpikingJelly {version} I-LIF": integer_lif}


def _snntorch(version: str, max_level: int) -> dict[str, Callable[[], nn.Module]]:
    from snntorch import Leaky  # noqa: PLC0415

    del max_level  # Leaky emits zeros and ones
    return {f"snnTorch {version} Leaky": lambda: SNNTorchNeuron(Leaky(beta=0.5))}
