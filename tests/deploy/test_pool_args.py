import pytest
from torch import nn

from lbq.deploy.pool_args import PoolArgs, read_pool


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (
            nn.MaxPool2d(3, 2, 1),
            PoolArgs(is_max=True, kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
        ),
        (nn.AvgPool2d((2, 3)), PoolArgs(is_max=False, kernel=(2, 3), stride=(2, 3))),
        (nn.AdaptiveAvgPool2d(1), PoolArgs(is_max=False, kernel=(8, 6), stride=(8, 6))),
        (nn.AdaptiveAvgPool2d(2), PoolArgs(is_max=False, kernel=(4, 3), stride=(4, 3))),
        (nn.AdaptiveAvgPool2d((None, 3)), PoolArgs(is_max=False, kernel=(1, 2), stride=(1, 2))),
    ],
)
def test_pools_that_a_lowered_network_has(module, expected):
    assert read_pool(module, type(module).__name__, (), {}, space=(8, 6)) == expected


@pytest.mark.parametrize(
    "module",
    [
        nn.MaxPool2d(3, ceil_mode=True),
        nn.MaxPool2d(3, dilation=2),
        nn.MaxPool2d(2, return_indices=True),
        nn.AvgPool2d(3, padding=1, count_include_pad=False),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AdaptiveAvgPool2d(4),
    ],
)
def test_pools_that_it_has_not_say_why(module):
    why = read_pool(module, type(module).__name__, (), {}, space=(8, 6))
    assert isinstance(why, str)


def test_functions_are_read_like_modules():
    found = read_pool(None, "avg_pool2d", (2,), {"padding": 1}, space=(8, 6))
    assert found == PoolArgs(is_max=False, kernel=(2, 2), stride=(2, 2), padding=(1, 1))


def test_cells_of_unequal_size_say_which():
    why = read_pool(None, "adaptive_avg_pool2d", (), {"output_size": 4}, space=(8, 6))
    assert isinstance(why, str)
    assert "8x6 is cut into 4x4 cells of unequal size" in why
