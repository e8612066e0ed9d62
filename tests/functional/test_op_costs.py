import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lbq.functional as lbqf

levels_and_fan_outs = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 10_000)), min_size=1, max_size=40
)


@given(levels_and_fan_outs)
def test_counts_are_what_a_loop_over_the_bits_counts(pairs):  # Eqs. 16-18
    unary = bit_sparse = formations = shifts = events = 0
    for level, fan_out in pairs:
        for _ in range(level):
            unary += fan_out
        for k, bit in enumerate(reversed(f"{level:b}")):
            if bit == "1":
                bit_sparse += fan_out
                formations += 1
                shifts += fan_out if k > 0 else 0
        events += fan_out if level else 0
    level, fan_out = (torch.tensor(column) for column in zip(*pairs, strict=True))
    for dtype in (torch.int64, torch.uint8, torch.float32):
        as_dtype = level.to(dtype)
        assert lbqf.unary_acs(as_dtype, fan_out) == unary
        assert lbqf.bit_sparse_acs(as_dtype, fan_out) == bit_sparse
        assert lbqf.plane_formations(as_dtype) == formations
        assert lbqf.explicit_shifts(as_dtype, fan_out) == shifts
        assert lbqf.unit_event_acs(as_dtype, fan_out) == events


def test_ternary_events_count_whatever_their_sign():
    level, fan_out = torch.tensor([-1, 0, 1], dtype=torch.int8), torch.tensor([3, 5, 7])
    assert lbqf.unit_event_acs(level, fan_out) == 10


def test_counts_beyond_float32_stay_exact():
    level = torch.full((1001,), 255, dtype=torch.uint8)
    fan_out = torch.tensor([2**31 - 1])
    assert lbqf.unary_acs(level, fan_out) == 1001 * 255 * (2**31 - 1)


def test_energy_is_the_priced_sum():  # Eq. 19
    energy = lbqf.arithmetic_energy_pj(fp_macs=10, acs=100, plane_formations=1000)
    assert energy == pytest.approx(4.6 * 10 + 0.9 * 100 + 0.1 * 1000)
    cheap = lbqf.arithmetic_energy_pj(fp_macs=10, acs=100, mac_pj=0.23, ac_pj=0.03)
    assert cheap == pytest.approx(0.23 * 10 + 0.03 * 100)
