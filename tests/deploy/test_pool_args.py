import pytest
from torch import nn

from lbq.deploy.pool_args import PoolArgs, module_call, read_pool


def pool(kernel, *, is_max=False, stride=None, padding=(0, 0), **more):
    return PoolArgs(
        is_max=is_max,
        size=(8, 6),
        kernel=kernel,
        stride=kernel if stride is None else stride,
        padding=padding,
        **more,
    )


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.MaxPool2d(3, 2, 1), pool((3, 3), is_max=True, stride=(2, 2), padding=(1, 1))),
        (nn.AvgPool2d((2, 3)), pool((2, 3))),
        (nn.AdaptiveAvgPool2d(1), pool((8, 6), is_global=True)),
        (nn.AdaptiveAvgPool2d(2), pool((4, 3))),
        (nn.AdaptiveAvgPool2d((None, 3)), pool((1, 2))),
    ],
)
def test_modules_are_read(module, expected):
    name, kwargs = module_call(module)
    assert read_pool(name, (), kwargs, size=(8, 6)) == expected


def test_functions_are_read():
    found = read_pool("avg_pool2d", (2,), {"padding": 1}, size=(8, 6))
    assert found == pool((2, 2), padding=(1, 1))
    assert found.output_size() == (5, 4)
    assert read_pool("max_pool1d", (3,), {}, size=(8,)).kernel == (3,)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.MaxPool2d(3, ceil_mode=True), "rounds its size up"),
        (nn.AvgPool2d(3, ceil_mode=True), "rounds its size up"),
        (nn.MaxPool2d(3, dilation=2), "dilated"),
        (nn.MaxPool2d(2, return_indices=True), "returns indices"),
        (nn.AdaptiveAvgPool2d(4), "8x6 is cut into 4x4 cells of unequal size"),
        (nn.AvgPool2d(3, padding=1, count_include_pad=False), "count_include_pad"),
        (nn.AvgPool2d(2, divisor_override=3), "divisor_override"),
    ],
)
def test_unsupported_pools_and_divisors_give_a_reason(module, why):
    name, kwargs = module_call(module)
    found = read_pool(name, (), kwargs, size=(8, 6))
    assert why in (found if isinstance(found, str) else found.divisor_issue)
