import random

import torch

from lbq.neurons import IntegerLIF


def test_levels_are_rounded_and_wholly_removed():
    rng = random.Random(6)
    for _ in range(100):
        currents = [rng.gauss(1, 3) for _ in range(6)]
        m, s, expected = 0.0, 0, []
        for x in currents:
            m = 0.25 * (m - s) + x
            s = round(min(max(m, 0.0), 4.0))
            expected.append(s)
        bursts = IntegerLIF().double()(torch.tensor(currents, dtype=torch.float64).reshape(6, 1, 1))
        assert bursts.flatten().tolist() == expected


def test_the_gradient_is_a_box_over_the_range():
    current = torch.tensor([[[-0.1, 0.1, 3.9, 4.1]]], requires_grad=True)
    IntegerLIF()(current).sum().backward()
    assert current.grad.flatten().tolist() == [0, 1, 1, 0]


def test_the_reset_has_no_gradient():
    currents = torch.tensor([2.2, 0.0]).reshape(2, 1, 1).requires_grad_()
    IntegerLIF()(currents)[1].sum().backward()  # m = 0.25 (2.2 - 2), inside the box
    assert currents.grad.flatten().tolist() == [0.25, 1.0]
