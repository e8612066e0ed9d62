import random

import torch

from lbq.neurons import MultiLevelLIF


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
        bursts = neuron(torch.tensor(currents, dtype=torch.float64).reshape(6, 1, 1))
        assert bursts.flatten().tolist() == expected


def test_the_windows_of_the_gradient_join_without_gaps():
    current = torch.tensor([[[0.0, 0.2, 1.0, 2.0, 3.0, 3.2]]], requires_grad=True)
    MultiLevelLIF()(current).sum().backward()
    assert current.grad.flatten().tolist() == [0, 1, 1, 1, 1, 0]
