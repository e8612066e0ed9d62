import math
import random

import torch

from lbq.neurons import BoxET, BurstLIF, FixedStep, LearnedStep, OriginalTernaryLIF, TernaryLIF


def sequence(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1)


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


def test_the_box_is_open_between_half_a_step_and_one_and_a_half():
    current = torch.tensor([[[-1.6, -1.4, -0.6, -0.4, 0.4, 0.6, 1.4, 1.6]]], requires_grad=True)
    TernaryLIF()(current).sum().backward()
    assert current.grad.flatten().tolist() == [0, 1, 1, 0, 0, 1, 1, 0]


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


def test_the_originals_box_covers_membranes_up_to_one():
    current = torch.tensor([[[-1.1, -0.9, 0.0, 0.9, 1.1]]], requires_grad=True)
    OriginalTernaryLIF(step=1.0)(current).sum().backward()
    assert current.grad.flatten().tolist() == [0, 1, 1, 1, 0]
