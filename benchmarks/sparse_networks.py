"""Integer networks whose levels are as sparse as one asks: thresholds are set where that is so."""

from collections.abc import Sequence

import torch
from torch import Tensor

import lbq
from lbq.deploy import LoweredNetwork
from lbq.deploy.nodes import IntegerNeuron

LEVEL_LAW = (0.498, 0.215, 0.125, 0.075, 0.087)
"""How active neurons of the paper's network divide over levels 1..5."""
UNIFORM, BY_STAGE = (0.151,) * 3, (0.24, 0.125, 0.065)
"""Share of active neurons in the three stages: the mean everywhere, and as the paper's."""
MEAN, STD = (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)


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


@torch.no_grad()
def make_sparse(
    net: LoweredNetwork,
    images: Tensor,
    activity: Sequence[float],
    law: Sequence[float] = LEVEL_LAW,
) -> None:
    """Set every neuron's thresholds so that its share of active levels is that of its stage.

    Thresholds are per channel, so that no channel is quieter than another: the worst case for
    whoever skips pairs of channels. A stage is told by the number of channels.
    """
    stages: list[int] = []

    def adapt(neuron: IntegerNeuron, args: tuple[Tensor, ...]) -> None:
        currents = args[0]
        channels = currents.shape[2]
        if channels not in stages:
            stages.append(channels)
        share = activity[min(stages.index(channels), len(activity) - 1)]
        reached = share * (1 - torch.tensor([0.0, *law[:-1]]).cumsum(0))  # at least n
        rows = currents.movedim(2, 0).flatten(1).float()  # [C, T * B * pixels]
        for _ in range(3):  # what is carried over depends on the thresholds
            ladder = torch.quantile(rows, 1 - reached.to(rows.dtype), dim=1).ceil().int()
            neuron.ladder = ladder.cummax(0).values.clamp(min=1)
            neuron.removed = neuron.ladder[0].clone()
            membranes, carry = [], torch.zeros_like(currents[0])
            for current in currents:
                membranes.append(neuron.integrate(carry, current))
                _, carry = neuron.instant(carry, current)
            rows = torch.stack(membranes).movedim(2, 0).flatten(1).float()

    hooks = [neuron.register_forward_pre_hook(adapt) for _, neuron in net.neurons()]  # pyright: ignore[reportArgumentType]
    net(images)
    for hook in hooks:
        hook.remove()


def activity_of(net: LoweredNetwork, images: Tensor) -> dict[str, float]:
    """Return the share of active levels of every layer."""
    active: dict[str, list[float]] = {}
    lbq.run(
        net,
        images,
        watch=lambda layer, t, level: active.setdefault(layer, []).append(
            float((level != 0).float().mean())
        ),
    )
    return {layer: sum(shares) / len(shares) for layer, shares in active.items()}
