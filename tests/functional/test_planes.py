import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import lbq.functional as lbqf
from lbq.errors import LevelError, ShapeError

ALL_LEVELS = torch.arange(256)


def test_the_number_of_planes_is_the_ceiling_of_the_logarithm():
    for n in range(1, 256):
        assert 2 ** (lbqf.num_planes(n) - 1) < n + 1 <= 2 ** lbqf.num_planes(n)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float32])
def test_every_level_survives_the_round_trip(dtype):  # Eq. 14
    planes = lbqf.to_planes(ALL_LEVELS.to(dtype), 8)
    assert planes.shape == (8, 256)
    for k in range(8):
        assert planes[k].tolist() == [(level // 2**k) % 2 for level in range(256)]
    assert torch.equal(lbqf.from_planes(planes).long(), ALL_LEVELS)


def test_more_planes_than_a_byte_holds_survive_too():
    level = torch.tensor([300.0, 511.0])
    assert lbqf.from_planes(lbqf.to_planes(level, 9)).tolist() == [300, 511]


def test_popcount_is_the_number_of_non_zero_planes():
    planes = lbqf.to_planes(ALL_LEVELS, 8)
    assert torch.equal(lbqf.popcount(ALL_LEVELS), planes.sum(0))
    assert lbqf.popcount(ALL_LEVELS).tolist() == [level.bit_count() for level in range(256)]
    assert torch.equal(lbqf.popcount(ALL_LEVELS.to(torch.uint8)).long(), planes.sum(0))


@given(st.sampled_from([1, 2, 3, 5, 7, 15, 31, 255]), st.integers(0, 2**32 - 1))
def test_bit_sparse_product_equals_the_dense_product(n, seed):  # Eq. 15
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-128, 128, (3, 2, 3, 3), generator=generator).double()
    level = torch.randint(0, n + 1, (1, 2, 5, 5), generator=generator)
    planes = lbqf.to_planes(level, lbqf.num_planes(n))
    calls = []

    def synapse(plane):
        calls.append(plane)
        return F.conv2d(plane, weight, padding=1)

    product = lbqf.bit_sparse_product(synapse, planes, dtype=torch.float64)
    assert torch.equal(product, F.conv2d(level.double(), weight, padding=1))
    assert all(plane.any() for plane in calls) or not level.any()  # zero planes are skipped


def test_silence_costs_nothing_and_has_the_right_shape():
    planes = lbqf.to_planes(torch.zeros(1, 2, 5, 5), 3)
    product = lbqf.bit_sparse_product(
        lambda plane: F.conv2d(plane, torch.ones(3, 2, 3, 3)), planes, dtype=torch.float32
    )
    assert product.shape == (1, 3, 3, 3)
    assert not product.any()


@pytest.mark.parametrize("wrong", [[0.5, 1.0], [-1.0], [8.0], [float("nan")]])
def test_what_is_no_level_is_refused_with_a_remedy(wrong):
    with pytest.raises(LevelError, match=r"integers in 0\.\.7.*pass the level, not the burst"):
        lbqf.to_planes(torch.tensor(wrong), 3)


def test_absorbed_weights_answer_levels_as_weights_answer_bursts():  # Eq. 13
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(7, 4, 3, 3, generator=generator, dtype=torch.float64)
    level = torch.randint(0, 6, (2, 4, 9, 9), generator=generator).double()
    for step in (torch.tensor([0.37]).double(), torch.rand(4, generator=generator).double() + 0.1):
        shaped = step if step.numel() == 1 else step.reshape(4, 1, 1)
        by_burst = F.conv2d(shaped * level, weight)
        by_level = F.conv2d(level, lbqf.absorb_step(weight, step))
        torch.testing.assert_close(by_level, by_burst, rtol=1e-12, atol=1e-12)


def test_linear_weights_absorb_too():
    weight, level = torch.randn(3, 5).double(), torch.randint(0, 6, (2, 5)).double()
    absorbed = lbqf.absorb_step(weight, torch.tensor([0.5]).double())
    assert torch.equal(level @ absorbed.T, 0.5 * level @ weight.T)  # 0.5 is exact


def test_a_step_per_channel_must_fit_the_weight():
    with pytest.raises(ShapeError, match="4 input channels"):
        lbqf.absorb_step(torch.zeros(7, 4, 3, 3), torch.ones(5))


def test_the_bits_of_integers_of_up_to_31_bits_are_counted():
    values = torch.tensor([[0, 1, 255, 256], [257, 2**20 + 3, 2**30, 2**31 - 1]])
    expected = [[value.bit_count() for value in row] for row in values.tolist()]
    assert lbqf.popcount_wide(values).tolist() == expected
