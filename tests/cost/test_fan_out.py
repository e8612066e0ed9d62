import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lbq.cost import conv_fan_out, linear_fan_out
from lbq.errors import ShapeError


def reached_by_loop(size, kernel, stride, padding, dilation):
    """Walk over every output and every tap and note which input it reads."""
    counts = torch.zeros(size, dtype=torch.int64)
    outputs = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    ]
    for place in itertools.product(*(range(n) for n in outputs)):
        for tap in itertools.product(*(range(k) for k in kernel)):
            read = tuple(
                o * s - p + t * d
                for o, s, p, t, d in zip(place, stride, padding, tap, dilation, strict=True)
            )
            if all(0 <= r < n for r, n in zip(read, size, strict=True)):
                counts[read] += 1
    return counts


axis = st.tuples(
    st.integers(5, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)
)


@given(st.lists(axis, min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 4))
def test_every_position_reaches_what_a_loop_over_the_taps_says(axes, groups, outs):
    size, kernel, stride, padding, dilation = map(tuple, zip(*axes, strict=True))
    reach = conv_fan_out(
        size,
        (outs * groups, 2, *kernel),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    assert torch.equal(
        reach.fan_out()[0], outs * reached_by_loop(size, kernel, stride, padding, dilation)
    )


def test_it_is_the_gradient_of_a_convolution_with_ones():  # computed in a second way
    inputs = torch.zeros(1, 4, 9, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(6, 2, 3, 3, dtype=torch.float64)
    F.conv2d(inputs, weight, stride=2, padding=1, groups=2).sum().backward()
    reach = conv_fan_out(
        (9, 7), (6, 2, 3, 3), stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=2
    )
    assert torch.equal(reach.fan_out().expand(4, 9, 7), inputs.grad[0].long())


def test_a_linear_input_reaches_every_output():
    assert linear_fan_out(10).fan_out().tolist() == [10]


def outputs_reached(linear_map, size):
    """Feed one position after the other and count the outputs that it moves."""
    counts = torch.zeros(size, size, dtype=torch.int64)
    for y in range(size):
        for x in range(size):
            one = torch.zeros(1, 1, size, size, dtype=torch.float64)
            one[0, 0, y, x] = 1
            counts[y, x] = (linear_map(one) != 0).sum()
    return counts


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
def test_an_average_pool_and_the_synapse_behind_it_are_one_linear_map(kernel, stride, padding):
    pool = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "padding": (padding,) * 2}
    weight = torch.ones(5, 1, 3, 3, dtype=torch.float64)

    def pooled(x):
        return F.avg_pool2d(x, kernel, stride, padding)

    size = 8
    cells = pooled(torch.zeros(1, 1, size, size)).shape[-1]
    conv = conv_fan_out(
        (cells, cells), weight.shape, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1
    )
    expected = outputs_reached(lambda x: F.conv2d(pooled(x), weight, padding=1), size)
    assert torch.equal(conv.through_avg_pool((size, size), **pool).fan_out()[0], expected)
    linear = linear_fan_out(7).through_avg_pool((size, size), **pool).fan_out()[0]
    matrix = torch.ones(7, cells * cells, dtype=torch.float64)
    assert torch.equal(linear, outputs_reached(lambda x: pooled(x).flatten(1) @ matrix.T, size))


def test_mismatched_axes_are_refused():
    with pytest.raises(ShapeError, match="kernel of 2 axes"):
        conv_fan_out((8,), (4, 4, 3, 3), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    behind = conv_fan_out((3,), (4, 4, 3), stride=(1,), padding=(0,), dilation=(1,), groups=1)
    with pytest.raises(ShapeError, match=r"\[4\] cells"):
        behind.through_avg_pool((8,), kernel=(2,), stride=(2,), padding=(0,))
