import torch

from lbq.deploy.backends.signs import by_sign


def test_levels_without_sign_are_passed_as_they_are():
    levels = torch.tensor([0, 3], dtype=torch.uint8)
    assert by_sign(levels, lambda x: x) is levels


def test_negative_levels_arrive_as_sizes():
    seen = []
    by_sign(torch.tensor([-2, 0, 3], dtype=torch.int8), lambda x: seen.append(x.tolist()) or x)
    assert seen == [[0, 0, 3], [2, 0, 0]]
