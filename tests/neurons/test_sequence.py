import pytest
import torch

from lbq.errors import TimeError
from lbq.neurons import BinaryLIF, IntegerLIF
from lbq.neurons.baselines import TimestepOutput, scan_over_time


def test_instants_are_called_in_order_with_the_carry_of_the_one_before():
    seen = []

    def instant(carry, current):
        seen.append((carry.item(), current.item()))
        return TimestepOutput(current, current, carry + current)

    bursts, levels, carry = scan_over_time(instant, torch.tensor([1.0, 2.0]).reshape(2, 1, 1), None)
    assert seen == [(0.0, 1.0), (1.0, 2.0)]
    assert bursts.flatten().tolist() == [1.0, 2.0]
    assert levels.dtype == torch.uint8
    assert carry.item() == 3.0


@pytest.mark.parametrize("neuron", [BinaryLIF(), IntegerLIF()])
def test_a_sequence_without_timesteps_is_refused(neuron):
    with pytest.raises(TimeError, match="at least one timestep"):
        neuron(torch.zeros(0, 2, 3))
