"""How long every layer takes on the native engine, beside what this machine could do at best."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lbq.deploy.backends.description import NetworkDescription
from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.native_engine import Choice, NativeEngine
from lbq.deploy.nodes import IntegerNeuron, Readout, Synapse

IDEAL_CHANNELS, IDEAL_SIDE = 256, 14
"""A layer whose weights and sums stay in the caches, and whose rows fill every vector."""


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """One step of the engine: everything that is added up before a neuron, and the neuron."""

    path: str
    seconds: float
    """Of the fastest round."""
    kernel: str
    """ "events", "dense", or "plain" where no level meets a weight."""
    pair_density: float | None
    """Share of pairs of channels that were not both zero."""
    products: int
    """That a dense engine would multiply for this."""

    @property
    def rate(self) -> float:
        """Products of a dense engine per second."""
        return self.products / self.seconds


@dataclass(frozen=True, kw_only=True)
class NetworkTime:
    """All layers, and the machine's limit."""

    isa: str
    limit: float
    """Products per second of the engine's own dense kernel on an ideal layer, just now."""
    layers: tuple[LayerTime, ...]

    def share(self, layer: LayerTime) -> float:
        """Compare a layer with the limit; above 1, no dense kernel here could keep up with it."""
        return layer.rate / self.limit


def time_layers(
    network: LoweredNetwork,
    inputs: Tensor,
    *,
    rounds: int = 20,
    choice: Choice = "measured",
    isa: str | None = None,
) -> NetworkTime:
    """Run at most four images on one thread, again and again; keep the fastest time of each layer.

    Args:
        network: what :func:`lbq.to_fixed_point` returned.
        inputs: uint8, as the network takes them; how many levels are active depends on them.
        rounds: how often.
        choice: as :class:`NativeEngine` takes it.
        isa: as :class:`NativeEngine` takes it.
    """
    network.check_input(inputs)
    engine = NativeEngine(network, choice=choice, isa=isa)
    runs = [engine.time_steps(inputs) for _ in range(1 + rounds)][1:]  # the first one takes memory
    batch = inputs.shape[1] if network.takes_frames else len(inputs)
    products = products_of_steps(network, {step.path for step in runs[0]})
    layers = tuple(
        LayerTime(
            path=same[0].path,
            seconds=min(step.seconds for step in same),
            kernel=_kernel(same[-1].pair_density, is_dense=same[-1].is_dense),
            pair_density=same[-1].pair_density,
            products=batch * products[same[0].path],
        )
        for same in zip(*runs, strict=True)
    )
    return NetworkTime(isa=engine.isa, limit=measure_limit(engine.isa, rounds), layers=layers)


def products_of_steps(network: LoweredNetwork, steps: Iterable[str]) -> dict[str, int]:
    """Count, for one sample, what a dense engine multiplies in each of these steps.

    A synapse that is no step of its own is added up where its only reader is.
    """
    described = NetworkDescription(network)
    reader = {name: place.path for place in network.plan for name in place.inputs}
    counts = dict.fromkeys(steps, 0)
    for place, node in network.nodes():
        if not isinstance(node, Synapse):
            continue
        _, height, width = described.shapes[place.path]
        instants = network.timesteps if described.has_time[place.path] else 1
        step = place.path
        while step not in counts:
            step = reader[step]
        counts[step] += instants * height * width * node.weight.numel()
    return counts


def measure_limit(isa: str, rounds: int = 20) -> float:
    """Return how many products per second the dense kernel reaches on an ideal layer."""
    network = ideal_network()
    engine = NativeEngine(network, choice="dense", isa=isa)
    inputs = torch.ones(1, 1, 1, IDEAL_SIDE, IDEAL_SIDE, dtype=torch.uint8)
    times = [engine.time_steps(inputs)[-1] for _ in range(1 + rounds)]
    products = products_of_steps(network, ["neuron", "ideal"])["ideal"]
    return products / min(step.seconds for step in times)


def ideal_network() -> LoweredNetwork:
    """Make a network whose last layer is a full 3x3 convolution of levels, all of them active."""
    network = LoweredNetwork(
        timesteps=1,
        input_shape=(1, IDEAL_SIDE, IDEAL_SIDE),
        takes_frames=True,
        logit_scale=1.0,
    )
    few = torch.ones(IDEAL_CHANNELS, 1, 1, 1, dtype=torch.int8)
    many = torch.ones(IDEAL_CHANNELS, IDEAL_CHANNELS, 3, 3, dtype=torch.int8)
    one = torch.ones(1, 1, dtype=torch.int32)
    neuron = IntegerNeuron(one, multiplier=0, shift=0, reset_amount=one[0], reset="event")
    network.add("stem", Synapse(few, max_input=255, bits=8), "input")
    network.add("neuron", neuron, "stem")
    network.add("ideal", Synapse(many, max_input=1, padding=(1, 1), bits=8), "neuron")
    network.add("readout", Readout("sum"), "ideal")
    return network


def _kernel(pair_density: float | None, *, is_dense: bool) -> str:
    if pair_density is None:
        return "plain"
    return "dense" if is_dense else "events"
