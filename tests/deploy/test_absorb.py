import pytest
import torch
from torch.nn import functional as F

from lbq.deploy.graph_builder import ScaledInput, SymbolicValue, absorb


def term(scale, channels, **more):
    return ScaledInput(
        source="n", scale=torch.as_tensor(scale).double(), max_size=5, channels=channels, **more
    )


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_absorbed_weights_take_levels_instead_of_bursts(groups):
    torch.manual_seed(0)
    steps = torch.rand(4).double() + 0.5
    weight = torch.randn(8, 4 // groups, 3, 3).double()
    levels = torch.randint(0, 6, (2, 4, 5, 5)).double()
    expected = F.conv2d(steps.reshape(1, -1, 1, 1) * levels, weight, groups=groups)
    absorbed = absorb(weight, term(steps, 4), channels=4, groups=groups)
    torch.testing.assert_close(F.conv2d(levels, absorbed, groups=groups), expected)


def test_flattened_channels_repeat_their_step():
    steps, weight = torch.tensor([1.0, 10.0]).double(), torch.ones(3, 8).double()
    absorbed = absorb(weight, term(steps, 2), channels=2, groups=1)
    assert absorbed[0].tolist() == [1.0] * 4 + [10.0] * 4


def test_a_concatenated_part_reads_its_own_weights():
    weight = torch.arange(5.0).reshape(1, 5).double()
    absorbed = absorb(weight, term([2.0], 2, first_channel=3), channels=5, groups=1)
    assert absorbed.tolist() == [[6.0, 8.0]]


def test_terms_of_one_node_become_one():
    one = SymbolicValue(terms=(term([1.0], 2),), axes="time")
    assert one.added(one).terms[0].scale.item() == 2.0
    assert len(one.added(one).terms) == 1
