import math
import random

import pytest
import torch

from lbq.errors import StepError, TimeError
from lbq.neurons import (
    LMHT,
    BinaryLIF,
    BoxET,
    BurstLIF,
    FixedStep,
    IntegerLIF,
    LearnedStep,
    MultiLevelLIF,
    OriginalTernaryLIF,
    TernaryLIF,
)
from lbq.neurons.baselines import TimestepOutput, scan_over_time


def sequence(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1)


def test_instants_are_called_in_order_with_the_carry_of_the_one_before():
    seen = []

    def instant(carry, current):
        seen.append((carry.item(), current.item()))
        return TimestepOutput(current, current, carry + current)

    bursts, levels, carry = scan_over_time(instant, torch.tensor([1.0, 2.0]).reshape(2, 1, 1), None)
    assert seen == [(0.0, 1.0), (1.0, 2.0)]
    assert bursts.flatten().tolist() == [1.0, 2.0]
    assert levels.dtype == torch.uint8
    assert carry.item() == 3.0


@pytest.mark.parametrize("neuron", [BinaryLIF(), IntegerLIF()])
def test_a_sequence_without_timesteps_is_refused(neuron):
    with pytest.raises(TimeError, match="at least one timestep"):
        neuron(torch.zeros(0, 2, 3))


def test_spikes_follow_equations_1_and_2():
    rng = random.Random(1)
    for _ in range(100):
        beta, alpha, threshold = rng.random(), rng.random(), rng.uniform(0.2, 2)
        currents = [rng.gauss(0, 2) for _ in range(6)]
        u, s, expected = 0.0, 0, []
        for x in currents:
            u = beta * u + x - alpha * threshold * s
            s = int(u > threshold)
            expected.append(s)
        neuron = BinaryLIF(threshold=threshold, decay=beta, reset=alpha).double()
        neuron.threshold.fill_(threshold)  # the float32 of the constructor is not this number
        neuron.decay.value.fill_(beta)
        neuron.reset.fill_(alpha)
        assert neuron(sequence(*currents)).flatten().tolist() == expected


def test_the_gradient_is_an_arctangent_around_the_threshold():
    current = torch.tensor([[[0.0, 0.9, 1.1, 3.0]]], requires_grad=True)
    BinaryLIF()(current).sum().backward()
    for u, grad in zip(current.flatten().tolist(), current.grad.flatten().tolist(), strict=True):
        assert grad == pytest.approx(1 / (1 + (math.pi * (u - 1)) ** 2), rel=1e-5)


@pytest.mark.parametrize(
    ("neuron", "currents", "slopes"),
    [
        (TernaryLIF(), [-1.6, -1.4, -0.6, -0.4, 0.4, 0.6, 1.4, 1.6], [0, 1, 1, 0, 0, 1, 1, 0]),
        (OriginalTernaryLIF(step=1.0), [-1.1, -0.9, 0.0, 0.9, 1.1], [0, 1, 1, 1, 0]),
        (IntegerLIF(), [-0.1, 0.1, 3.9, 4.1], [0, 1, 1, 0]),
        (MultiLevelLIF(), [0.0, 0.2, 1.0, 2.0, 3.0, 3.2], [0, 1, 1, 1, 1, 0]),  # without gaps
    ],
)
def test_the_gradient_is_a_box(neuron, currents, slopes):
    current = torch.tensor([[currents]], requires_grad=True)
    neuron(current).sum().backward()
    assert current.grad.flatten().tolist() == slopes


def test_a_threshold_must_be_positive():
    with pytest.raises(StepError):
        BinaryLIF(threshold=0.0)


def test_levels_and_soft_reset_mirror_the_burst_neuron():
    rng = random.Random(4)
    for _ in range(100):
        currents = [rng.gauss(0, 2) for _ in range(6)]
        v, expected = 0.0, []
        for x in currents:
            u = 0.5 * v + x
            s = math.copysign(1, u) if abs(u) >= 1 else 0.0
            v = u - s
            expected.append(s)
        assert TernaryLIF().double()(sequence(*currents)).flatten().tolist() == expected


def test_one_timestep_is_the_difference_of_two_burst_neurons():
    currents = torch.randn(1, 64, 8, generator=torch.Generator().manual_seed(5)).requires_grad_()
    weight = torch.randn(1, 64, 8, generator=torch.Generator().manual_seed(6))
    burst = BurstLIF(max_level=1, step=FixedStep(), surrogate=BoxET())
    ternary, difference = TernaryLIF()(currents), burst(currents) - burst(-currents)
    (mine,) = torch.autograd.grad(ternary, currents, weight)
    (theirs,) = torch.autograd.grad(difference, currents, weight)
    assert torch.equal(ternary, difference)
    assert torch.equal(mine, theirs)
    assert mine.any()


def test_a_learned_step_is_threshold_and_scale():
    neuron = TernaryLIF(step=LearnedStep(0.25))
    bursts = neuron(torch.tensor([[[-3.0, -0.2, 0.2, 3.0]]]))
    assert (bursts / neuron.step()).round(decimals=4).flatten().tolist() == [-1, 0, 0, 1]
    assert {name for name, _ in neuron.named_parameters()} == {"step.raw_step"}


def test_the_original_fires_from_half_on_and_resets_hard():
    neuron = OriginalTernaryLIF().double()
    bursts = neuron(sequence(0.4, 0.45, 9.0, 0.4, -0.6))
    # 0.4; 0.1 + 0.45 fires; 9 fires from rest; 0.4 from rest; 0.1 - 0.6 = -0.5 fires
    assert (bursts / neuron.step()).round().flatten().tolist() == [0, 1, 1, 0, -1]


def test_the_originals_amplitude_scales_the_output_alone():
    neuron = OriginalTernaryLIF(step=LearnedStep(0.3))
    bursts = neuron(torch.tensor([[[-0.4, 0.5, 2.0]]]))
    assert torch.allclose(bursts.flatten(), 0.3 * torch.tensor([0.0, 1.0, 1.0]), atol=1e-6)
    bursts.sum().backward()
    assert neuron.step.raw_step.grad.item() != 0


def test_levels_are_rounded_and_wholly_removed():
    rng = random.Random(6)
    for _ in range(100):
        currents = [rng.gauss(1, 3) for _ in range(6)]
        m, s, expected = 0.0, 0, []
        for x in currents:
            m = 0.25 * (m - s) + x
            s = round(min(max(m, 0.0), 4.0))
            expected.append(s)
        assert IntegerLIF().double()(sequence(*currents)).flatten().tolist() == expected


def test_the_reset_has_no_gradient():
    currents = torch.tensor([2.2, 0.0]).reshape(2, 1, 1).requires_grad_()
    IntegerLIF()(currents)[1].sum().backward()  # m = 0.25 (2.2 - 2), inside the box
    assert currents.grad.flatten().tolist() == [0.25, 1.0]


def test_the_level_is_the_sum_of_three_hard_reset_neurons():
    rng = random.Random(8)
    for _ in range(100):
        currents = [rng.gauss(1, 2) for _ in range(6)]
        expected = [0] * 6
        for threshold in (0.6, 1.6, 2.6):
            u = 0.0
            for t, x in enumerate(currents):
                u = 0.25 * u + x
                if u > threshold:
                    expected[t] += 1
                    u = 0.0
        neuron = MultiLevelLIF().double()
        neuron.thresholds.copy_(torch.tensor([0.6, 1.6, 2.6], dtype=torch.float64))
        assert neuron(sequence(*currents)).flatten().tolist() == expected


def test_levels_follow_the_published_recursion():
    generator = torch.Generator().manual_seed(9)
    neuron = LMHT(4, max_level=2).double()
    with torch.no_grad():
        neuron.raw_leak.fill_(0.3)
        neuron.raw_mixture.copy_(torch.randn(4, 4, generator=generator))
    currents = 2 * torch.randn(4, 1, 50, generator=generator, dtype=torch.float64)
    bursts = neuron(currents)
    leak = 1 / (1 + math.exp(-0.3)) + 0.5
    for i in range(50):
        v = 0.0
        for t in range(4):
            mixed = sum(
                2 / (1 + math.exp(-neuron.raw_mixture[t, j].item())) / 4 * currents[j, 0, i].item()
                for j in range(4)
            )
            v = leak * v + mixed
            out = min(max(math.floor(v), 0), 2)  # the step is 2 / L = 1
            assert bursts[t, 0, i].item() == out
            v -= out


def test_at_the_start_every_timestep_sees_the_average():
    currents = torch.randn(4, 2, 3)
    constant = currents.mean(0, keepdim=True).expand(4, 2, 3)
    assert torch.allclose(LMHT(4)(currents), LMHT(4)(constant))


def test_thresholds_are_two_over_the_number_of_levels():
    assert [LMHT(2, max_level=n).step.item() for n in (1, 2, 4)] == [1.0, 1.0, 0.5]


def test_it_refuses_other_lengths_and_streams():
    with pytest.raises(TimeError, match=r"all of its 4 timesteps.*got 3.*timesteps=3"):
        LMHT(4)(torch.zeros(3, 1, 1))
    with pytest.raises(TimeError, match=r"and a carry.*stream with BurstLIF"):
        LMHT(4).stream(torch.zeros(4, 1, 1), torch.zeros(1, 1))
