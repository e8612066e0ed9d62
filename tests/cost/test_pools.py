import pytest
import torch
from torch.nn import functional as F

from lbq.cost.pools import Pool, read_pool

X = torch.zeros(1, 2, 8, 6)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"),
    [
        ("max_pool2d", (X, 2), {}, Pool(True, (8, 6), (2, 2), (2, 2), (0, 0))),
        ("max_pool2d", (X, 3, 2, 1), {}, Pool(True, (8, 6), (3, 3), (2, 2), (1, 1))),
        ("max_pool2d", (X, 3), {"ceil_mode": True}, None),
        ("max_pool2d", (X, 3), {"dilation": 2}, None),
        ("avg_pool2d", (X, (2, 3)), {}, Pool(False, (8, 6), (2, 3), (2, 3), (0, 0))),
        ("avg_pool1d", (X[0], 2), {"ceil_mode": True}, None),
        ("adaptive_avg_pool2d", (X, 1), {}, Pool(False, (8, 6), None)),
        ("adaptive_avg_pool2d", (X, (2, 2)), {}, None),
        ("mean", (X, (2, 3)), {}, Pool(False, (8, 6), None)),
        ("mean", (X, 0), {}, None),
        ("mean", (X,), {}, None),
        ("relu", (X,), {}, None),
    ],
)
def test_torchs_pools_are_read_or_declined(name, args, kwargs, expected):
    assert read_pool(name, args, kwargs) == expected


def test_levels_are_pooled_as_integers():
    level = torch.randint(0, 256, (2, 3, 8, 6), dtype=torch.uint8)
    pooled = Pool(True, (8, 6), (3, 3), (2, 2), (1, 1)).apply(level)
    assert pooled.dtype == torch.uint8
    assert torch.equal(pooled.double(), F.max_pool2d(level.double(), 3, 2, 1))
