"""Integer networks with a given sparsity of levels, reached by choosing the thresholds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

import lbq
from lbq.graph import LoweredNetwork
from lbq.graph.graph import Node
from lbq.graph.operators import IntegerNeuron

LEVEL_LAW = (0.498, 0.215, 0.125, 0.075, 0.087)
"""Shares of the levels 1..5 among active neurons of the paper's network."""
UNIFORM, BY_STAGE = (0.151,) * 3, (0.24, 0.125, 0.065)
"""Share of active neurons in the three stages: the mean everywhere, and as the paper's."""
MEAN, STD = (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)

Reached = Mapping[str, Sequence[float]]
"""For every layer, the shares of its levels that are at least 1, 2, .. 5."""


def build(
    *, width: float = 1.0, timesteps: int = 2, max_level: int = 5, seed: int = 0
) -> LoweredNetwork:
    """Return the paper's ResNet-20 in 8 bits, with random weights."""
    torch.manual_seed(seed)
    model = lbq.resnet20(10, timesteps=timesteps, max_level=max_level, width=width).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.bias, 0, 0.3)
    return lbq.to_fixed_point(
        lbq.lower(model, torch.zeros(1, 3, 32, 32)), pixels=lbq.Pixels(mean=MEAN, std=STD)
    )


def by_stage(
    net: LoweredNetwork, activity: Sequence[float], law: Sequence[float] = LEVEL_LAW
) -> Reached:
    """Return the shares of levels reached, for an activity per stage and shares of levels.

    The stem's neuron belongs to the first stage.
    """
    below = [0.0, *accumulate(law[:-1])]
    stage_of = {path: int(path.split(".")[1]) if "." in path else 0 for path, _ in net.neurons()}
    return {
        path: [activity[stage] * (1 - share) for share in below] for path, stage in stage_of.items()
    }


@torch.no_grad()
def make_sparse(net: LoweredNetwork, images: Tensor, reached: Reached) -> LoweredNetwork:
    """Return the network with thresholds so that its levels are reached as often as requested.

    Thresholds are per channel, so that all channels are equally active: the worst case for skipping
    pairs of channels.
    """
    nodes: list[Node] = []

    def adapt(node: Node, *values: Tensor) -> Tensor:
        neuron = node.operator
        if isinstance(neuron, IntegerNeuron):
            node = node._replace(operator=adapted(neuron, values[0], reached[node.path]))
        nodes.append(node)
        return node.compute(*values)

    def adapted(neuron: IntegerNeuron, currents: Tensor, share: Sequence[float]) -> IntegerNeuron:
        rows = currents.movedim(2, 0).flatten(1).float()  # [C, T * B * pixels]
        for _ in range(3):  # the carry depends on the thresholds
            thresholds = torch.quantile(rows, 1 - torch.tensor(share), dim=1).ceil().int()
            thresholds = thresholds.cummax(0).values.clamp(min=1)
            neuron = replace(neuron, thresholds=thresholds, reset_amount=thresholds[0].clone())
            membranes, carry = [], torch.zeros_like(currents[0])
            for current in currents:
                membranes.append(neuron.integrate(carry, current))
                _, carry = neuron.update(carry, current)
            rows = torch.stack(membranes).movedim(2, 0).flatten(1).float()
        return neuron

    net(images, adapt)
    return replace(net, nodes=tuple(nodes))


def levels_reached(net: LoweredNetwork, images: Tensor) -> dict[str, list[float]]:
    """Return for every layer the shares of its levels that are at least 1, 2, .. 5."""
    most, seen = len(LEVEL_LAW), dict[str, list[Tensor]]()

    def count(layer: str, t: int, level: Tensor) -> None:
        at_least = torch.arange(1, most + 1).reshape(-1, *[1] * level.ndim)
        seen.setdefault(layer, []).append((level >= at_least).float().flatten(1).mean(1))

    lbq.run_network(net, images, watch=count)
    return {layer: torch.stack(shares).mean(0).tolist() for layer, shares in seen.items()}


def activity_of(net: LoweredNetwork, images: Tensor) -> dict[str, float]:
    """Return the share of active levels of every layer."""
    return {layer: shares[0] for layer, shares in levels_reached(net, images).items()}
