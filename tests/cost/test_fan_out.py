import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from lbq.cost import conv_fan_out, linear_fan_out, pooled_fan_out
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
    got = conv_fan_out(
        size,
        (outs * groups, 2, *kernel),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    assert torch.equal(got[0], outs * reached_by_loop(size, kernel, stride, padding, dilation))


def test_it_is_the_gradient_of_a_convolution_with_ones():  # another road to the same numbers
    inputs = torch.zeros(1, 4, 9, 7, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(6, 2, 3, 3, dtype=torch.float64)
    F.conv2d(inputs, weight, stride=2, padding=1, groups=2).sum().backward()
    got = conv_fan_out(
        (9, 7), (6, 2, 3, 3), stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=2
    )
    assert torch.equal(got.expand(4, 9, 7), inputs.grad[0].long())


def test_a_linear_input_reaches_every_output():
    assert linear_fan_out(10).tolist() == [10]


@given(st.integers(4, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 1))
def test_an_average_pool_belongs_to_the_synapse_behind_it(size, kernel, stride, padding):
    padding = min(padding, kernel // 2)
    inputs = torch.zeros(1, 1, size, size, dtype=torch.float64, requires_grad=True)
    pooled = F.avg_pool2d(inputs, kernel, stride, padding, divisor_override=1)
    behind = torch.randint(0, 9, pooled.shape)
    (pooled * behind).sum().backward()
    got = pooled_fan_out(
        behind[0], (size, size), kernel=(kernel,) * 2, stride=(stride,) * 2, padding=(padding,) * 2
    )
    assert torch.equal(got, inputs.grad[0].long())


def test_a_constant_behind_a_pool_stays_constant_where_windows_tile():
    got = pooled_fan_out(linear_fan_out(7), (4, 6), kernel=(2, 2), stride=(2, 2), padding=(0, 0))
    assert torch.equal(got, torch.full((1, 4, 6), 7))


def test_mismatched_axes_are_refused():
    with pytest.raises(ShapeError, match="kernel of 2 axes"):
        conv_fan_out((8,), (4, 4, 3, 3), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
