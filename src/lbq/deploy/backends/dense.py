"""Levels as numbers: one product per synapse."""

from torch import Tensor

from lbq.deploy.nodes import Weighted


def multiply(synapse: Weighted, levels: Tensor) -> Tensor:
    """Multiply at once."""
    return synapse.multiply(levels)
