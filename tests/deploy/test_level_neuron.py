import numpy as np
import torch
from torch import nn

from lbq.deploy.nodes import IntegerNeuron, LevelNeuron


def test_a_neuron_counts_the_thresholds_it_has_reached():
    neuron = LevelNeuron(
        torch.tensor([[0.5], [1.0], [4.0]]),
        decay=torch.zeros(1),
        reset_amount=torch.ones(1),
        reset="none",
    )
    currents = torch.tensor([-1.0, 0.49, 0.5, 3.9, 4.0, 99.0]).reshape(1, 6, 1)
    assert neuron(currents).flatten().tolist() == [0, 0, 1, 2, 3, 3]


def integer_neuron(**changes):
    options = {
        "multiplier": 1, "shift": 1, "reset_amount": torch.tensor([10], dtype=torch.int32),
        "reset": "event",
    } | changes  # fmt: skip
    return IntegerNeuron(torch.tensor([[10], [20]], dtype=torch.int32), **options)


def test_an_integer_neuron_decays_by_multiplying_and_shifting_down():  # S8
    grid = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    for multiplier, shift in [(1, 1), (95, 8), (255, 8), (1, 0), (0, 0), (3, 2)]:
        neuron = integer_neuron(multiplier=multiplier, shift=shift)
        got = neuron.integrate(grid, torch.zeros_like(grid))
        expected = [carry * multiplier // 2**shift for carry in grid.tolist()]
        assert got.tolist() == expected


def test_an_integer_neuron_removes_what_its_reset_says():
    current = torch.tensor([[25]], dtype=torch.int32)
    reset_amount = {"event": 10, "level": 20, "none": 0, "zero": 25}
    for reset, amount in reset_amount.items():
        _, carry = integer_neuron(reset=reset).update(torch.zeros_like(current), current)
        assert carry.item() == 25 - amount


def test_a_stream_equals_the_whole_sequence():
    currents = torch.randint(-30, 30, (6, 4, 3), dtype=torch.int32)
    neuron, carry, pieces = integer_neuron(), None, []
    for piece in currents.split(2):
        levels, carry = neuron.stream(piece, carry)
        pieces.append(levels)
    assert torch.equal(torch.cat(pieces), neuron(currents))


def test_nodes_hold_no_state_between_calls():  # S1
    neuron: nn.Module = integer_neuron()
    first, second = (torch.randint(-30, 30, (3, 5, 2), dtype=torch.int32) for _ in range(2))
    alone = neuron(second)
    neuron(first)
    assert torch.equal(neuron(second), alone)
    order = torch.from_numpy(np.random.default_rng(0).permutation(5))
    assert torch.equal(neuron(second[:, order]), alone[:, order])
