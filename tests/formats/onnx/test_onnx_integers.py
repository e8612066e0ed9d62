import numpy as np
import pytest
import torch
from onnx_networks import ENGINES, answers, exported_answers, num_different

from lbq.errors import LoweringError
from lbq.formats.onnx import export_onnx
from lbq.graph.graph import GraphBuilder
from lbq.graph.operators import (
    IntegerNeuron,
    Matmul,
    Pool,
    Readout,
    Rearrange,
    Repeat,
    Shortcut,
    Slice,
    Synapse,
    ZeroPad,
)


def integers(*nodes, timesteps=1, shape=(2, 6, 6)):
    """Return an integer network of a chain of nodes over still bytes."""
    net = GraphBuilder(timesteps=timesteps, input_shape=shape, takes_frames=False, logit_scale=1.0)
    before = "input"
    for number, node in enumerate(nodes):
        before = net.add(f"{type(node).__name__.lower()}{number}", node, before)
    return net.finish()


def wide(high, *, limit=32767):
    """Return a synapse whose currents have both signs and reach far beyond 2**24."""
    torch.manual_seed(high)
    weight = torch.randint(-limit, limit + 1, (4, 2, 3, 3), dtype=torch.int16)
    bias = torch.randint(-(2**20), 2**20, (4, 6, 6), dtype=torch.int32)
    return Synapse(weight, bias, max_input=high, has_time=False, padding=(1, 1), bits=16)


def neuron(**changes):
    fields = {
        "multiplier": 5,
        "shift": 3,
        "reset_amount": torch.tensor([3_000_001], dtype=torch.int32),
        "reset": "event",
    }
    thresholds = torch.tensor([[1_000_003], [18_000_001], [22_000_007]], dtype=torch.int32)
    if changes.get("resets_after_decay"):
        thresholds = thresholds[1:2]  # such neurons have one
    return IntegerNeuron(thresholds, **(fields | changes))


def head(*, max_input, has_time=True, area=36):
    weight = torch.randint(-127, 128, (3, 4 * area), dtype=torch.int8)
    return Synapse(weight, max_input=max_input, has_time=has_time, bits=8)


def raw(shape=(2, 6, 6)):
    torch.manual_seed(0)
    return torch.randint(0, 256, (3, *shape), dtype=torch.uint8)


def check(net, inputs):
    expected = answers(net, inputs)
    for engine in ENGINES:
        assert not num_different(exported_answers(net, inputs, engine=engine), expected)
    return expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shift": 1, "multiplier": 1},
        {"shift": 0, "multiplier": 1},
        {"reset": "level"},
        {"reset": "none"},
        {"reset": "zero"},
        {"resets_after_decay": True},
    ],
    ids=str,
)
def test_wide_membranes_of_both_signs_are_exact(changes):
    node = neuron(**changes)
    net = integers(
        wide(255), Repeat(3), node, head(max_input=node.max_level), Readout("sum"), timesteps=3
    )
    expected = check(net, raw())
    assert len(np.unique(expected["integerneuron2"])) == 1 + node.max_level


@pytest.mark.parametrize(
    "pool",
    [
        Pool("max", kernel=(3, 3), stride=(2, 2), padding=(1, 1), has_time=False),
        Pool("sum", kernel=(2, 3), stride=(2, 1), padding=(1, 0), has_time=False),
        Pool("sum", kernel=(6, 6), has_time=False),
    ],
    ids=str,
)
def test_pools_of_wide_currents_are_exact(pool):
    check(integers(wide(255, limit=20_000), pool, Repeat(1), Readout("sum")), raw())


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_levels_are_pooled_exactly(kind):
    pool = Pool(kind, kernel=(3, 3), stride=(2, 2), padding=(1, 1))
    size = 3 * 9 if kind == "sum" else 3
    net = integers(
        wide(255), Repeat(2), neuron(), pool, head(max_input=size, area=9), Readout("sum"),
        timesteps=2,
    )  # fmt: skip
    check(net, raw())


def test_many_levels_times_wide_weights_are_exact():
    """A sum pool gives more than a byte, and its products more than float32 holds."""
    pool = Pool("sum", kernel=(6, 6), has_time=False)
    weight = torch.full((3, 2), 32767, dtype=torch.int16)
    weight[1] = -weight[1]
    node = Synapse(weight, max_input=255 * 36, has_time=False, bits=16)
    check(integers(pool, node, Repeat(1), Readout("sum")), raw())


def test_a_shortcut_of_16_bits_is_exact():
    node = Shortcut(torch.tensor([32767, -32767], dtype=torch.int16), max_input=255, has_time=False)
    check(integers(node, Repeat(2), Readout("sum"), timesteps=2), raw())


def test_a_sum_whose_digits_could_overflow_is_refused_by_its_path(tmp_path):
    weight = torch.full((1, 2, 16, 16), 8191, dtype=torch.int16)
    weight[:, 1] = -8192  # their sum fits 32 bits, that of their sizes does not
    node = Synapse(weight, max_input=1020, has_time=False, bits=16)
    pool = Pool("sum", kernel=(2, 2), has_time=False)
    net = integers(pool, node, Repeat(1), Readout("sum"), shape=(2, 17, 17))
    with pytest.raises(LoweringError, match="synapse1 cannot be exported: its sums"):
        export_onnx(net, tmp_path / "net.onnx")


def test_zeros_around_negative_currents_are_pooled():
    """ONNX Runtime takes a Pad before a max pool for padding with the lowest number."""
    negative = Shortcut(torch.tensor([-3], dtype=torch.int16), max_input=255, has_time=False)
    pad = ZeroPad(before=(1, 0), after=(2, 3), has_time=False)
    pool = Pool("max", kernel=(2, 2), has_time=False)
    expected = check(integers(negative, pad, pool, Repeat(1), Readout("sum")), raw())["logits"]
    assert set(expected[..., -1, -1].flat) == {0}
    assert expected.min() < 0


@pytest.mark.parametrize("shape", [(5, 7), (5, 4, 3)])
def test_a_scale_behind_a_sum_over_all_positions_is_that_of_its_channel(shape):
    """OpenVINO mixes up the channels behind a sum over one axis."""
    weight = torch.tensor([1, -2, 30, -400, 5000], dtype=torch.int16)
    pool = Pool("sum", kernel=shape[1:], has_time=False)
    scale = Shortcut(weight, -weight.int(), max_input=255 * 12, has_time=False)
    check(integers(pool, scale, Repeat(1), Readout("sum"), shape=shape), raw(shape))


def test_the_dilation_of_one_tap_changes_nothing():
    """OpenVINO crashes over it."""
    weight = torch.randint(-127, 128, (4, 2, 2, 1), dtype=torch.int8)
    settings = {"stride": (2, 2), "padding": (2, 1), "dilation": (1, 2), "has_time": False}
    node = Synapse(weight, max_input=255, bits=8, **settings)
    check(integers(node, Repeat(1), Readout("sum"), shape=(2, 2, 1)), raw((2, 2, 1)))


def test_matrices_of_levels_beyond_a_byte_are_exact():
    """Sums of products beyond 2**24, and products of these with levels."""
    net = GraphBuilder(timesteps=1, input_shape=(1, 300, 3), takes_frames=True, logit_scale=1.0)
    turned = net.add("turned", Rearrange(sizes=(300, 3), order=(1, 0), shape=(1, 3, 300)), "input")
    first = net.add("first", Matmul(), turned, "input")  # [1, 3, 3], to 300 * 255**2
    few = net.add("few", Slice(axis=1, start=0, stop=3), "input")
    one = torch.ones(1, dtype=torch.int16)
    fields = {"multiplier": 0, "shift": 0, "reset_amount": one.int(), "reset": "none"}
    levels = IntegerNeuron(torch.tensor([[90], [180]], dtype=torch.int32), **fields)
    levels = net.add("levels", levels, net.add("pixels", Shortcut(one, max_input=255), few))
    second = net.add("second", Matmul(), first, levels)
    current = net.add("current", Shortcut(one, max_input=6 * 300 * 255**2), second)
    net.add("readout", Readout("sum"), current)
    net = net.finish()
    check(net, torch.full((1, 2, 1, 300, 3), 255, dtype=torch.uint8))
    assert check(net, raw((1, 1, 300, 3)).movedim(1, 0))["logits"].max() > 2**24
