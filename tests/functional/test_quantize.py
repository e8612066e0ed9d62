import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lbq.functional as lbqf

steps = st.floats(1e-4, 1e4)
membranes = st.floats(-1e5, 1e5)
max_levels = st.sampled_from([1, 2, 5, 10, 20, 255])


def one(value):
    return torch.tensor([value], dtype=torch.float64)


@given(membranes, steps, max_levels)
def test_level_is_the_clipped_floor_of_the_ratio(u, gamma, n):  # Eq. 6
    expected = min(max(math.floor(u / gamma), 0), n)
    assert lbqf.burst_level(one(u), one(gamma), max_level=n).item() == expected


@given(membranes, steps, max_levels)
def test_fixed_interval_has_the_same_levels(u, delta, n):  # Eq. 4
    expected = min(max(math.floor(u / delta), 0), n)
    assert lbqf.fixed_burst_level(one(u), delta, max_level=n).item() == expected


@given(membranes, steps, max_levels)
def test_burst_is_step_times_level(u, gamma, n):  # Eq. 5
    expected = gamma * min(max(math.floor(u / gamma), 0), n)
    assert lbqf.burst(one(u), one(gamma), max_level=n).item() == expected


@given(st.integers(-30, 300), st.floats(0.001, 0.999), steps, max_levels)
def test_counting_uniform_thresholds_agrees_with_floor(whole, part, gamma, n):  # Eq. 3 == Eq. 6
    membrane = one((whole + part) * gamma)  # away from exact multiples
    thresholds = gamma * torch.arange(1, n + 1, dtype=torch.float64)
    by_count = lbqf.count_thresholds(membrane, thresholds)
    assert torch.equal(by_count, lbqf.burst_level(membrane, one(gamma), max_level=n))


def test_thresholds_that_are_reached_exactly_count():  # Eq. 3, ">="
    thresholds = torch.tensor([0.5, 0.7, 3.0])
    membrane = torch.tensor([0.4, 0.5, 0.7, 2.9, 3.0, 9.0])
    assert lbqf.count_thresholds(membrane, thresholds).tolist() == [0, 1, 2, 2, 3, 3]


@given(st.lists(membranes, min_size=2, max_size=50), steps, max_levels)
def test_levels_never_fall_when_the_membrane_rises(values, gamma, n):
    membrane = torch.tensor(sorted(values), dtype=torch.float64)
    assert (lbqf.burst_level(membrane, one(gamma), max_level=n).diff() >= 0).all()


def test_binary_spike_needs_more_than_the_threshold():  # Eq. 2, ">"
    threshold = torch.tensor([1.0])
    just_above = math.nextafter(1.0, 2.0)
    membrane = torch.tensor([-1.0, 0.0, 1.0, just_above, 3.0], dtype=torch.float64)
    assert lbqf.binary_spike(membrane, threshold=threshold).tolist() == [0, 0, 0, 1, 1]


@given(membranes, steps)
def test_ternary_level_is_odd_and_fires_from_one_step_on(u, gamma):
    expected = 0 if abs(u) / gamma < 1 else math.copysign(1, u)
    level = lbqf.ternary_level(one(u), one(gamma)).item()
    assert level == expected
    assert lbqf.ternary_level(one(-u), one(gamma)).item() == -level


def test_levels_carry_no_gradient():
    membrane, step = one(2.5).requires_grad_(), one(0.5).requires_grad_()
    assert not lbqf.burst_level(membrane, step, max_level=5).requires_grad
    assert not lbqf.ternary_level(membrane, step).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_thresholds_agree_with_the_level_formula_at_every_threshold(dtype):  # S4
    torch.manual_seed(0)
    steps = 10 ** torch.empty(20_000, dtype=dtype).uniform_(-4, 4)
    for max_level in (1, 2, 3, 5, 7, 15, 31, 255):
        some = steps[: 20_000 if max_level <= 7 else 1_000]
        thresholds = lbqf.level_thresholds(some, max_level=max_level)  # [N, steps]
        counts = torch.arange(1, max_level + 1, dtype=dtype).unsqueeze(1)
        membrane = counts * some
        for _ in range(2):
            membrane = torch.nextafter(membrane, torch.full_like(membrane, -torch.inf))
        for _ in range(5):  # k * step, and two floats on either side of it
            expected = lbqf.burst_level(membrane, some, max_level=max_level)
            assert torch.equal(lbqf.count_thresholds(membrane, thresholds.unsqueeze(1)), expected)
            membrane = torch.nextafter(membrane, torch.full_like(membrane, torch.inf))
