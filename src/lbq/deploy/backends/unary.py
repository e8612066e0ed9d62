"""Levels as counts: one binary product for every level that is reached."""

import torch
from torch import Tensor

from lbq.deploy.backends.signs import by_sign
from lbq.deploy.nodes import Weighted


def multiply(synapse: Weighted, levels: Tensor) -> Tensor:
    """Add up the synapse's answers to "at least one", "at least two", and so on."""
    if levels.is_floating_point():
        return synapse.multiply(levels)

    def add_up(sizes: Tensor) -> Tensor:
        total = synapse.multiply((sizes >= 1).to(torch.uint8))
        for k in range(2, int(sizes.max()) + 1 if sizes.numel() else 0):
            total = total + synapse.multiply((sizes >= k).to(torch.uint8))
        return total

    return by_sign(levels, add_up)
