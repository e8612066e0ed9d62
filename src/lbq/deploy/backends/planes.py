"""Levels as bit planes: one binary product per plane, empty planes skipped (Eq. 15)."""

import torch
from torch import Tensor

from lbq.deploy.backends.signs import by_sign
from lbq.deploy.nodes import Weighted
from lbq.functional.planes import bit_sparse_product, num_planes, to_planes


def multiply(synapse: Weighted, levels: Tensor) -> Tensor:
    """Multiply plane by plane and shift."""
    if levels.is_floating_point():
        return synapse.multiply(levels)
    assert synapse.max_input is not None

    def add_up(sizes: Tensor) -> Tensor:
        planes = to_planes(sizes, num_planes(synapse.max_input or 1))
        product = bit_sparse_product(synapse.multiply, planes, dtype=torch.uint8)
        return product.to(torch.int32) if synapse.is_integer else product

    return by_sign(levels, add_up)
