import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lbq.errors import StepError
from lbq.neurons import BurstLIF, FixedStep, LearnedStep


@given(st.floats(1e-4, 1e4))
def test_a_learned_step_starts_where_it_is_told(value):
    assert LearnedStep(value)().item() == pytest.approx(value, rel=1e-5)


def test_the_default_is_one_and_its_parameter_half_a_log():
    assert LearnedStep().raw_step.item() == pytest.approx(math.log(math.e - 1), abs=1e-5)


def test_a_fixed_step_is_a_buffer_not_a_parameter():
    step = FixedStep(0.3)
    assert not list(step.parameters())
    assert [name for name, _ in step.named_buffers()] == ["value"]


@given(st.floats(-200, 200))
def test_a_learned_step_is_positive_wherever_training_takes_it(raw):
    step = LearnedStep()
    with torch.no_grad():
        step.raw_step.fill_(raw)
    assert step().item() >= 0.999 * step.eps
    assert math.isfinite(step().item())


def test_a_half_precision_parameter_still_gives_a_float32_step():
    assert LearnedStep(0.01).half()().dtype == torch.float32


@pytest.mark.parametrize("kind", [FixedStep, LearnedStep])
def test_set_puts_other_values_in(kind):
    step = kind(channels=3)
    step.set_(torch.tensor([0.1, 1.0, 10.0]))
    assert step().tolist() == pytest.approx([0.1, 1.0, 10.0], rel=1e-5)
    with pytest.raises(StepError):
        step.set_(torch.tensor([0.1, -1.0, 10.0]))


def test_a_learned_step_cannot_be_put_below_its_own_eps():
    with pytest.raises(StepError, match=r"above 0\.1"):
        LearnedStep(0.05, eps=0.1)
    with pytest.raises(StepError, match=r"above 0\.1"):
        LearnedStep(eps=0.1).set_(torch.tensor([0.05]))


def test_the_lsq_scale_shrinks_the_gradient_and_nothing_else(currents):
    plain, scaled = (
        BurstLIF(step=LearnedStep(0.4, gradient_scale=scale)) for scale in ("none", "lsq")
    )
    bursts, same = plain(currents), scaled(currents)
    assert torch.equal(bursts, same)
    (grad,) = torch.autograd.grad(bursts.square().sum(), plain.step.raw_step)
    (small,) = torch.autograd.grad(same.square().sum(), scaled.step.raw_step)
    expected = grad.item() / math.sqrt(currents.numel() * 5)
    assert small.item() == pytest.approx(expected, rel=1e-4)
