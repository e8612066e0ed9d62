"""Levels as numbers: one product per synapse."""

from torch import Tensor

from lbq.deploy.nodes import Shortcut, Synapse


def multiply(synapse: Synapse | Shortcut, levels: Tensor) -> Tensor:
    """Multiply at once."""
    return synapse.multiply(levels)
