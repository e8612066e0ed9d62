import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lbq.functional as lbqf

MEMBERS = {  # lo, hi - N, tail
    "ReLSG-ET": (1.0, 0.0, 0.37),
    "Box-ET": (0.5, 0.5, None),
    "matched box": (1.0, 0.0, None),
    "clip box": (0.0, 0.0, None),
    "tailed box": (0.5, 0.5, 0.5),
}
members = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
levels = st.sampled_from([2, 5, 20, 255])
ratios = st.floats(-300, 600)


def soft_oracle(r, lo, hi, tail):  # Eq. 9, branch by branch
    tail = tail or 0.0
    if r < lo:
        return lo + tail * (math.exp(r - lo) - 1)
    if r > hi:
        return hi + tail * (1 - math.exp(hi - r))
    return r


def slope_oracle(r, lo, hi, tail):  # Eq. 11, branch by branch
    tail = tail or 0.0
    if r < lo:
        return tail * math.exp(r - lo)
    if r > hi:
        return tail * math.exp(hi - r)
    return 1.0


def one(value):
    return torch.tensor([value], dtype=torch.float64)


def slope_at(ratio, lo, hi, tail):
    return lbqf.soft_level_slope(*lbqf.plateau_position(ratio, lo=lo, hi=hi), tail=tail)


@members
@given(ratios, levels)
def test_soft_level_follows_its_three_branches(member, r, n):  # Eq. 9
    lo, margin, tail = member
    got = lbqf.soft_level(one(r), lo=lo, hi=n + margin, tail=tail).item()
    assert got == pytest.approx(soft_oracle(r, lo, n + margin, tail), rel=1e-14, abs=1e-14)


@members
@given(ratios, levels)
def test_slope_follows_its_three_branches(member, r, n):  # Eq. 11
    lo, margin, tail = member
    got = slope_at(one(r), lo, n + margin, tail).item()
    assert got == pytest.approx(slope_oracle(r, lo, n + margin, tail), rel=1e-13)
    assert 0 <= got <= 1


@members
@given(ratios, levels)
def test_slope_is_what_autograd_makes_of_the_soft_level(member, r, n):
    lo, margin, tail = member
    ratio = one(r).requires_grad_()
    lbqf.soft_level(ratio, lo=lo, hi=n + margin, tail=tail).sum().backward()
    assert ratio.grad.item() == pytest.approx(
        slope_at(one(r), lo, n + margin, tail).item(), rel=1e-13
    )


@given(levels, st.floats(0.01, 0.99))
def test_soft_level_is_continuous_at_both_ends_of_the_plateau(n, tail):
    for edge in (1.0, float(n)):
        around = torch.tensor([math.nextafter(edge, -1e9), edge, math.nextafter(edge, 1e9)])
        soft = lbqf.soft_level(around.double(), lo=1.0, hi=float(n), tail=tail)
        assert (soft - edge).abs().max() < 1e-6 * edge


@members
@given(st.lists(ratios, min_size=2, max_size=30), levels)
def test_soft_level_never_falls(member, values, n):
    lo, margin, tail = member
    ratio = torch.tensor(sorted(values), dtype=torch.float64)
    assert (lbqf.soft_level(ratio, lo=lo, hi=n + margin, tail=tail).diff() >= 0).all()


@members
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_straight_through_equals_step_times_level_bit_for_bit(member, dtype):  # Eq. 10
    lo, margin, tail = member
    generator = torch.Generator().manual_seed(11)
    for n in (1, 5, 255):
        if n == 1 and tail is None and margin == 0:
            continue  # an empty plateau
        membrane = torch.randn(1_000_000, generator=generator, dtype=dtype) * n
        step = torch.tensor([0.37], dtype=dtype)
        level = lbqf.burst_level(membrane, step, max_level=n)
        soft = lbqf.soft_level(membrane / step, lo=lo, hi=n + margin, tail=tail)
        assert torch.equal(lbqf.straight_through(level, soft, step), step * level)


@members
@given(ratios, levels, st.floats(1e-3, 1e3))
def test_step_slope_is_the_closed_form_everywhere(member, r, n, gamma):  # Eq. 12
    lo, margin, tail = member
    hi = n + margin
    membrane, step = one(r * gamma), one(gamma).requires_grad_()
    level = lbqf.burst_level(membrane, step, max_level=n)
    soft = lbqf.soft_level(membrane / step, lo=lo, hi=hi, tail=tail)
    lbqf.straight_through(level, soft, step).sum().backward()
    ratio = membrane / step.detach()
    closed = lbqf.step_slope(level, ratio, slope_at(ratio, lo, hi, tail)).item()
    s, x = level.item(), ratio.item()
    assert closed == pytest.approx(s - x * slope_oracle(x, lo, hi, tail), rel=1e-12, abs=1e-12)
    assert step.grad.item() == pytest.approx(closed, rel=1e-10, abs=1e-10)
    if tail == 0.37 and 1 <= x <= n:
        assert closed == pytest.approx(s - x, abs=1e-12)  # the range that the paper prints


@given(ratios, levels, st.floats(0.01, 0.99), st.floats(1e-3, 1e3))
def test_the_tail_has_a_gradient_in_both_tails_and_none_between(r, n, strength, gamma):
    tail, step = one(strength).requires_grad_(), one(gamma)
    soft = lbqf.soft_level(one(r), lo=1.0, hi=float(n), tail=tail)
    (step * soft).sum().backward()
    closed = lbqf.tail_slope(*lbqf.plateau_position(one(r), lo=1.0, hi=float(n))).item()
    below, above = math.exp(min(r - 1, 0)) - 1, 1 - math.exp(min(n - r, 0))
    expected = below + above  # one of them is zero
    assert closed == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert tail.grad.item() == pytest.approx(gamma * expected, rel=1e-12, abs=1e-12)


@members
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_ratios_give_no_nan(member, dtype):
    lo, margin, tail = member
    strength = None if tail is None else torch.tensor([tail], dtype=dtype, requires_grad=True)
    ratio = torch.tensor([-1e4, -1e2, 0, 1, 5, 1e2, 1e4], dtype=dtype, requires_grad=True)
    soft = lbqf.soft_level(ratio, lo=lo, hi=5 + margin, tail=strength)
    soft.sum().backward()
    assert soft.isfinite().all()
    assert ratio.grad.isfinite().all()
    assert strength is None or strength.grad.isfinite().all()


@given(st.floats(-50, 50), st.floats(0.1, 5))
def test_arctan_soft_spike_has_the_published_slope(u, a):
    membrane = one(u).requires_grad_()
    lbqf.arctan_soft_spike(membrane, threshold=one(1.0), sharpness=a).sum().backward()
    expected = a / (2 * (1 + (math.pi / 2 * a * (u - 1)) ** 2))
    assert membrane.grad.item() == pytest.approx(expected, rel=1e-10)
