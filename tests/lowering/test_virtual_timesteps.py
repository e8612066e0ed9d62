"""Levels sent as D binary timesteps: exact for linear maps, wrong for products of levels."""

from itertools import product

import pytest
import torch
from torch import nn

import lbq
from lbq.graph.operators import Matmul, Multiply
from lbq.models import SpikeDrivenAttention
from lbq.neurons import IntegerLIF
from lbq.runtime.run import planes_product, unary_product

D = 4


def virtual_timesteps(levels):
    """Return D binary tensors whose sum is the levels: ``[D, ...]``."""
    return torch.stack([(levels > d).double() for d in range(D)])


def test_a_linear_map_of_virtual_timesteps_is_exact():
    torch.manual_seed(0)
    levels, weight = torch.randint(0, D + 1, (7, 9)).double(), torch.randn(9, 5).double()
    assert torch.allclose((virtual_timesteps(levels) @ weight).sum(0), levels @ weight)


def test_products_of_virtual_timesteps_need_all_cross_terms():
    two = torch.tensor([[2.0]]).double()
    spikes = virtual_timesteps(two)
    assert (spikes @ spikes).sum(0) == 2  # of 4
    torch.manual_seed(0)
    left, right = (torch.randint(0, D + 1, (6, 6)).double() for _ in range(2))
    one, other = virtual_timesteps(left), virtual_timesteps(right)
    assert not torch.equal((one @ other).sum(0), left @ right)
    crossed = sum(one[i] @ other[j] for i, j in product(range(D), range(D)))
    assert torch.equal(crossed, left @ right)


@pytest.mark.parametrize(("multiply", "parts"), [(unary_product, 9), (planes_product, 4)])
@pytest.mark.parametrize("kind", [Matmul, Multiply])
def test_backends_execute_every_pair_of_parts(multiply, parts, kind):
    calls = []

    class Counted(kind):
        def multiply(self, left, right):
            calls.append((left, right))
            return super().multiply(left, right)

    left = torch.tensor([1, 2, 3, 0], dtype=torch.uint8).reshape(1, 1, 1, 2, 2)
    right = torch.tensor([3, 1, 2, 0], dtype=torch.uint8).reshape(1, 1, 1, 2, 2)
    node = Counted()
    assert torch.equal(multiply(node, left, right), kind().multiply(left, right))
    assert len(calls) == parts
    assert all(int(side.max()) <= 1 for pair in calls for side in pair)
    calls.clear()
    wide = right.to(torch.int32) * 1000  # the result of a product stays an integer
    assert torch.equal(multiply(node, left, wide), kind().multiply(left, wide))
    assert all(torch.equal(second, wide) for _, second in calls)


def test_signed_levels_are_multiplied_part_by_part():
    left = torch.tensor([[-3, 2]], dtype=torch.int8)
    right = torch.tensor([[2, -1]], dtype=torch.int8)
    for multiply in (unary_product, planes_product):
        assert multiply(Multiply(), left, right).tolist() == [[-6, -2]]


def test_attention_of_virtual_timesteps_differs_from_that_of_levels():
    """What attention that was trained with levels does on spike trains as they come."""
    torch.manual_seed(0)
    attention = SpikeDrivenAttention(
        16, heads=2, neuron=lambda channels: IntegerLIF(D, decay=0.0, is_normalised=True)
    ).double()
    for module in attention.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.bias, 1.5)
    attention.eval()
    with lbq.record_levels(attention) as levels, torch.no_grad():
        attention(3 * torch.rand(1, 2, 16, 4, 4).double())
    q, k, v = (levels[f"{part}.1"][0].double() for part in ("query", "key", "value"))
    q, k, v = (part[0].flatten(2).unflatten(1, (2, -1)) for part in (q, k, v))  # [B, heads, d, N]
    right = q.transpose(-2, -1) @ k @ v.transpose(-2, -1)
    spikes = [virtual_timesteps(part) for part in (q, k, v)]
    naive = (spikes[0].transpose(-2, -1) @ spikes[1] @ spikes[2].transpose(-2, -1)).sum(0)
    assert (naive < right).double().mean() > 0.9
