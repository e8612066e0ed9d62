import math
import random

import pytest
import torch

from lbq.errors import StepError
from lbq.neurons import BinaryLIF


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
        spikes = neuron(torch.tensor(currents, dtype=torch.float64).reshape(6, 1, 1))
        assert spikes.flatten().tolist() == expected


def test_the_gradient_is_an_arctangent_around_the_threshold():
    current = torch.tensor([[[0.0, 0.9, 1.1, 3.0]]], requires_grad=True)
    BinaryLIF()(current).sum().backward()
    for u, grad in zip(current.flatten().tolist(), current.grad.flatten().tolist(), strict=True):
        assert grad == pytest.approx(1 / (1 + (math.pi * (u - 1)) ** 2), rel=1e-5)


def test_a_threshold_must_be_positive():
    with pytest.raises(StepError):
        BinaryLIF(threshold=0.0)
