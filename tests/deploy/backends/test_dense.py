import pytest
import torch

from lbq.deploy.backends import dense
from lbq.deploy.nodes import Shortcut, Synapse

LEVELS = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("max_level", [1, 2, 3, 5, 7, 15, 31, 255])
@pytest.mark.parametrize("bits", [8, 16])
def test_every_level_times_every_extreme_weight_is_exact(max_level, bits):  # S6
    largest = 2 ** (bits - 1) - 1
    weights = torch.tensor([[-largest], [-1], [0], [1], [2], [largest]])
    synapse = Synapse(weights.to(torch.int8 if bits == 8 else torch.int16), max_input=max_level)
    levels = LEVELS[: max_level + 1].reshape(-1, 1)
    got = dense.multiply(synapse, levels)
    assert got.dtype == torch.int32
    assert torch.equal(got.long(), levels.long() @ weights.T)


def test_shortcuts_are_multiplied_alike():
    shortcut = Shortcut(torch.tensor([-30000, 7], dtype=torch.int16), max_input=255)
    levels = torch.stack([LEVELS, LEVELS.flip(0)], dim=1)
    expected = levels.long() * torch.tensor([-30000, 7])
    assert torch.equal(dense.multiply(shortcut, levels).long(), expected)


def test_negative_levels_subtract():
    synapse = Synapse(torch.tensor([[3.0, -2.0]]).double(), max_input=1)
    levels = torch.tensor([[-1, 1], [1, 0], [0, -1], [-1, -1]], dtype=torch.int8)
    assert dense.multiply(synapse, levels).flatten().tolist() == [-5.0, 3.0, 2.0, -1.0]


def test_real_inputs_are_multiplied_as_they_are():
    synapse = Synapse(torch.tensor([[2.0]]), max_input=None)
    assert dense.multiply(synapse, torch.tensor([[0.25]])).item() == 0.5
