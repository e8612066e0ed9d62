"""The reference against a neuron written with Python numbers."""

import math
import random

import pytest
import torch

from lbq.kernels import ScanOptions, burst_scan_reference


def neuron_oracle(currents, carry, gamma, beta, alpha, n, mode):
    """One neuron, one number at a time."""
    levels, bursts = [], []
    for x in currents:
        u = x if carry is None else beta * carry + x
        s = min(max(math.floor(u / gamma), 0), n)
        steps = {"event": 1 if s > 0 else 0, "level": s, "none": 0}[mode]
        carry = u - alpha * gamma * steps
        levels.append(s)
        bursts.append(gamma * s)
    return levels, bursts, carry


@pytest.mark.parametrize("mode", ["event", "level", "none"])
def test_reference_is_the_neuron_of_the_paper(mode):  # Eqs. 5-8
    rng = random.Random(5)
    for _ in range(300):
        n, gamma = rng.choice([1, 2, 5, 10, 20, 255]), 10 ** rng.uniform(-4, 4)
        beta, alpha, length = rng.random(), rng.random(), rng.choice([1, 2, 4, 10, 16])
        currents = [rng.gauss(0, 1) * gamma * n / 2 for _ in range(length)]
        carry = rng.choice([None, rng.gauss(0, 1) * gamma])
        out = burst_scan_reference(
            torch.tensor(currents, dtype=torch.float64).reshape(-1, 1),
            torch.tensor([gamma], dtype=torch.float64),
            tail=0.5,
            decay=beta,
            reset=alpha,
            carry=None if carry is None else torch.tensor([carry], dtype=torch.float64),
            options=ScanOptions(max_level=n, lo=1.0, hi=float(n), reset_mode=mode),
        )
        levels, bursts, last = neuron_oracle(currents, carry, gamma, beta, alpha, n, mode)
        assert out.levels.flatten().tolist() == levels
        assert out.bursts.flatten().tolist() == bursts
        assert out.carry.item() == pytest.approx(last, rel=1e-14)
