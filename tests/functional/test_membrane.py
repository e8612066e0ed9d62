import random

import pytest
import torch

import lbq.functional as lbqf


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_lif_membrane_subtracts_the_reset_after_the_decay():  # Eq. 1
    rng = random.Random(1)
    for _ in range(200):
        u, x, beta, alpha, threshold = (rng.uniform(-3, 3) for _ in range(5))
        spike = rng.randint(0, 1)
        got = lbqf.lif_membrane(
            tensor(u),
            tensor(x),
            spike=tensor(spike),
            decay=beta,
            threshold=tensor(threshold),
            reset=alpha,
        )
        assert got.item() == pytest.approx(beta * u + x - alpha * threshold * spike, rel=1e-12)


def test_integrate_decays_the_carry_and_adds_the_current():  # Eq. 7
    rng = random.Random(2)
    for _ in range(200):
        v, x, beta = (rng.uniform(-3, 3) for _ in range(3))
        got = lbqf.integrate(tensor(v), tensor(x), decay=beta)
        assert got.item() == pytest.approx(beta * v + x, rel=1e-12)


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("event", lambda s: (s > 0) - (s < 0)),  # Eq. 8: one step, whatever the level
        ("level", lambda s: s),
        ("none", lambda s: 0),
    ],
)
def test_soft_reset_removes_what_its_mode_says(mode, steps):
    rng = random.Random(3)
    for _ in range(200):
        u, gamma, alpha = rng.uniform(-3, 3), rng.uniform(0.01, 3), rng.uniform(0, 1)
        level = rng.randint(-1, 5)
        got = lbqf.soft_reset(tensor(u), tensor(level), step=tensor(gamma), reset=alpha, mode=mode)
        assert got.item() == pytest.approx(u - alpha * gamma * steps(level), rel=1e-12, abs=1e-15)


def test_the_reset_sends_its_gradient_to_the_step_but_not_to_the_level():
    step, level = tensor(0.5).requires_grad_(), tensor(3.0).requires_grad_()
    lbqf.soft_reset(tensor(2.0), level, step=step, reset=0.8).sum().backward()
    assert step.grad.item() == -0.8
    assert level.grad is None
