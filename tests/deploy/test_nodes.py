import pytest
import torch

from lbq.deploy.nodes import Merge, Pool, Readout, Shortcut, Synapse
from lbq.errors import LevelError, ParameterError


def test_an_integer_synapse_is_exact_where_float32_would_round():
    weight = torch.full((1, 600), 127, dtype=torch.int8)
    synapse = Synapse(weight, max_input=255)
    levels = torch.full((1, 1, 600), 255, dtype=torch.uint8)
    levels[..., 0] = 254
    assert synapse(levels).item() == 127 * (255 * 599 + 254) > 2**24
    assert synapse(levels).dtype == torch.int32


def test_a_bias_may_differ_at_every_position():
    bias = torch.arange(8.0).reshape(2, 2, 2)
    synapse = Synapse(torch.zeros(2, 1, 1, 1), bias, max_input=1, has_time=False)
    out = synapse(torch.zeros(3, 1, 2, 2))
    assert torch.equal(out, bias.expand(3, 2, 2, 2))


def test_a_shortcut_multiplies_every_channel_by_its_weight():
    shortcut = Shortcut(torch.tensor([2, 30000], dtype=torch.int16), max_input=5)
    levels = torch.tensor([3, 5], dtype=torch.uint8).reshape(1, 1, 2, 1, 1)
    assert shortcut(levels).flatten().tolist() == [6, 150000]


def test_a_merge_adds_any_number_of_currents():
    parts = [torch.randn(2, 3) for _ in range(4)]
    torch.testing.assert_close(Merge()(*parts), sum(parts))


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_a_pool_keeps_integers(kind):
    levels = torch.randint(0, 255, (2, 3, 4, 6, 6), dtype=torch.uint8)
    pooled = Pool(kind, kernel=(3, 2), stride=(3, 2))(levels)
    windows = levels.long().unfold(3, 3, 3).unfold(4, 2, 2)
    expected = windows.amax((-1, -2)) if kind == "max" else windows.sum((-1, -2))
    assert torch.equal(pooled.long(), expected)


def test_a_pool_of_another_kind_is_refused():
    with pytest.raises(ParameterError, match="median"):
        Pool("median", kernel=(2, 2))


def test_a_readout_adds_or_averages_or_leaves_time():
    currents = torch.arange(6).reshape(3, 1, 2)
    assert Readout("sum")(currents).tolist() == [[6, 9]]
    assert Readout("mean")(currents.float()).tolist() == [[2.0, 3.0]]
    assert torch.equal(Readout("none")(currents), currents)


def test_values_for_other_channels_are_refused():
    shortcut = Shortcut(torch.ones(3), max_input=1)
    with pytest.raises(LevelError, match="3 values for 4 channels"):
        shortcut(torch.zeros(1, 1, 4, 2, 2))
