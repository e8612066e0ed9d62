import pytest
import torch
from torch.nn import functional as F

import lbq.functional as lbqf
from lbq.errors import ShapeError


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
