import math

import pytest
import torch

from lbq.errors import TimeError
from lbq.neurons import LMHT


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
