import pytest

from lbq.lowering.pool_args import PoolArgs, read_pool


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
    ("name", "args", "expected"),
    [
        ("max_pool2d", (3, 2, 1), pool((3, 3), is_max=True, stride=(2, 2), padding=(1, 1))),
        ("avg_pool2d", ((2, 3),), pool((2, 3))),
        ("adaptive_avg_pool2d", (1,), pool((8, 6), is_global=True)),
        ("adaptive_avg_pool2d", (2,), pool((4, 3))),
        ("adaptive_avg_pool2d", ((None, 3),), pool((1, 2))),
    ],
)
def test_positions_are_read(name, args, expected):
    assert read_pool(name, args, {}, size=(8, 6)) == expected


def test_names_are_read():
    found = read_pool("avg_pool2d", (2,), {"padding": 1}, size=(8, 6))
    assert found == pool((2, 2), padding=(1, 1))
    assert found.output_size() == (5, 4)
    assert read_pool("max_pool1d", (3,), {}, size=(8,)).kernel == (3,)


@pytest.mark.parametrize(
    ("name", "size", "given", "why"),
    [
        ("max_pool2d", 3, {"ceil_mode": True}, "rounds its size up"),
        ("avg_pool2d", 3, {"ceil_mode": True}, "rounds its size up"),
        ("max_pool2d", 3, {"dilation": 2}, "dilated"),
        ("max_pool2d", 2, {"return_indices": True}, "returns indices"),
        ("adaptive_avg_pool2d", 4, {}, "8x6 is cut into 4x4 cells of unequal size"),
        ("avg_pool2d", 3, {"padding": 1, "count_include_pad": False}, "count_include_pad"),
        ("avg_pool2d", 2, {"divisor_override": 3}, "divisor_override"),
    ],
)
def test_unsupported_pools_and_divisors_give_a_reason(name, size, given, why):
    found = read_pool(name, (size,), given, size=(8, 6))
    assert why in (found if isinstance(found, str) else found.divisor_issue)
