import pytest
import torch
from torch import nn
from torch.nn import functional as F
from wired import Wired

import lbq
from lbq.cost import read_connectivity
from lbq.errors import CountError, ShapeError, TimeError
from lbq.time import OverTime


def wires(connectivity, *, identities=False):
    return [(e.source, e.target) for e in connectivity.edges if e.is_identity == identities]


def test_a_chain_is_wired_in_order():
    model = nn.Sequential(nn.Linear(4, 5), lbq.BurstLIF(), nn.Linear(5, 6), lbq.BurstLIF())
    connectivity = read_connectivity(model, torch.randn(3, 1, 4))
    assert wires(connectivity) == [("1", "2")]
    assert connectivity.neurons == {"1": 5, "3": 6}
    assert connectivity.timesteps == 3
    assert [(s.name, s.macs, s.timesteps, s.has_real_input) for s in connectivity.synapses] == [
        ("0", 3 * 20, 3, True),
        ("2", 3 * 30, 3, False),
    ]


@pytest.mark.parametrize(
    ("block", "spiking", "real"),
    [("basic", 19, ["stem.1"]), ("sew", 21, ["stem.1"]), ("ms", 18, ["stem.1", "classifier.0.2"])],
)
def test_every_synapse_of_a_resnet_is_found_whatever_its_blocks(block, spiking, real):
    model = lbq.resnet20(10, width=1 / 16, block=block)
    connectivity = read_connectivity(model, torch.randn(1, 3, 16, 16))
    synapses = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sorted(s.name for s in connectivity.synapses) == sorted(synapses)
    assert [s.name for s in connectivity.synapses if s.has_real_input] == real
    assert {target for _, target in wires(connectivity)} == set(synapses) - set(real)
    assert len(connectivity.neurons) == spiking
    assert not connectivity.untracked


def test_identity_shortcuts_are_edges_of_their_own():
    connectivity = read_connectivity(lbq.resnet20(10, width=1 / 16), torch.randn(1, 3, 16, 16))
    identities = wires(connectivity, identities=True)
    assert len(identities) == 7  # nine blocks, two of them with a 1x1 synapse
    assert identities[0] == ("stem_neuron", "stages.0.0")


def test_pools_are_followed():
    model = nn.Sequential(
        lbq.BurstLIF(),
        OverTime(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.Conv2d(3, 5, 3, padding=1)),
        lbq.BurstLIF(),
        OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 7)),
    )
    connectivity = read_connectivity(model, torch.randn(2, 1, 3, 16, 16))
    first, second = connectivity.edges
    level = torch.arange(3 * 16 * 16).reshape(1, 3, 16, 16)
    assert torch.equal(first.carry({"0": level}), F.max_pool2d(level.double(), 3, 2, 1).long())
    assert first.fan_out.shape == (1, 8, 8)  # behind the max-pool, before the average
    assert first.fan_out[0, 0].tolist() == [20, 20, 30, 30, 30, 30, 20, 20]
    assert second.fan_out.unique().tolist() == [7]


def test_what_cannot_be_followed_is_listed_with_its_module():
    model = nn.Sequential(lbq.BurstLIF(), nn.ReLU(), nn.Linear(4, 2))
    assert read_connectivity(model, torch.randn(2, 1, 4)).untracked == ["relu in 1"]


def joined(join, features=4):
    """Two neurons whose bursts are joined in some way before a linear layer."""
    neurons = {"a": lbq.BurstLIF(), "b": lbq.BurstLIF()}
    return Wired(lambda m, x: m.out(join(m.a(x), m.b(-x))), **neurons, out=nn.Linear(features, 2))


def added_in_place(a, b):
    a += b
    return a


@pytest.mark.parametrize(
    ("sources", "features", "join"),
    [
        ("ab", 4, lambda a, b: a + b),
        ("ab", 4, added_in_place),
        ("ab", 8, lambda a, b: torch.cat([a, b], dim=2)),
        ("a", 4, lambda a, b: 0 + a),
        ("a", 4, lambda a, b: a * -1.0),
        ("a", 4, lambda a, b: F.dropout(a, 0.5, training=False).div(4).div_(2)),
    ],
)
def test_what_keeps_levels_is_followed_branch_by_branch(sources, features, join):
    connectivity = read_connectivity(joined(join, features), torch.randn(2, 1, 4))
    assert wires(connectivity) == [(source, "out") for source in sources]
    assert not connectivity.untracked


def partly_cleared(b):
    b = b.clone()
    b[..., :2] = 0.0
    return b


def cleared_through_a_view(b):
    b.view(b.shape).mul_(torch.tensor(0.0))
    return b


def cleared_by_out(b):
    torch.mul(b, torch.zeros(4), out=b)
    return b


def normalised(b):
    return F.batch_norm(b.flatten(0, 1), torch.zeros(4), torch.ones(4)).view_as(b)


@pytest.mark.parametrize(
    ("name", "features", "join"),
    [
        ("stack", 4, lambda a, b: torch.stack([a, b])),
        ("cat", 4, lambda a, b: torch.cat([a, b], dim=1)),
        ("relu", 4, lambda a, b: a.relu_()),
        ("unbind", 4, lambda a, b: a.unbind(0)[0].unsqueeze(0)),
        ("split", 4, lambda a, b: a.split(1)[0]),
        ("chunk", 4, lambda a, b: a.chunk(2)[0]),
        ("expand", 1, lambda a, b: a.expand(-1, -1, 4)),
        ("add", 4, lambda a, b: a + 1.0),
        ("div", 4, lambda a, b: torch.div(a, 4, rounding_mode="floor")),
        ("slice_scatter", 4, lambda a, b: partly_cleared(a)),
        ("mul", 4, lambda a, b: cleared_through_a_view(a)),
        ("mul", 4, lambda a, b: cleared_by_out(a)),
        ("zero", 4, lambda a, b: a.zero_()),
        ("dropout", 4, lambda a, b: F.dropout(a, 0.5)),
        ("batch_norm", 4, lambda a, b: normalised(a)),
    ],
)
def test_what_loses_levels_is_listed_and_counted_in_macs(name, features, join):
    connectivity = read_connectivity(joined(join), torch.randn(2, 1, features))
    assert not connectivity.edges
    assert [s.has_real_input for s in connectivity.synapses] == [True]
    assert f"{name} in the network itself" in connectivity.untracked


def test_a_sum_of_bursts_and_currents_into_a_synapse_is_listed():
    def mixed(m, x):
        bursts = m.neuron(x)
        return m.two(bursts + m.one(bursts))

    model = Wired(mixed, neuron=lbq.BurstLIF(), one=nn.Linear(4, 4), two=nn.Linear(4, 2))
    connectivity = read_connectivity(model, torch.randn(2, 1, 4))
    assert connectivity.untracked == ["sum of bursts and currents into two"]
    assert [s.has_real_input for s in connectivity.synapses] == [False, True]


def test_products_of_levels_are_counted_and_their_results_enter_the_next_synapse():
    connectivity = read_connectivity(joined(lambda a, b: a * b), torch.randn(2, 1, 4))
    (product,) = connectivity.products
    assert (product.name, product.dense, product.needs) == ("multiply", 4, ("a", "b"))
    assert wires(connectivity) == [("multiply", "out")]


def test_a_product_with_a_constant_matrix_is_a_synapse():
    model = joined(lambda a, b: a @ torch.ones(4, 4))
    assert wires(read_connectivity(model, torch.randn(2, 1, 4))) == [("a", "linear")]
    assert lbq.count_macs(model, torch.randn(2, 1, 4)) == {"linear": 2 * 16, "out": 2 * 8}


def test_levels_concatenated_with_real_numbers_are_listed_and_counted_in_macs():
    model = Wired(
        lambda m, x: m.out(torch.cat([m.a(x), x], dim=2)), a=lbq.BurstLIF(), out=nn.Linear(8, 2)
    )
    connectivity = read_connectivity(model, torch.randn(2, 1, 4))
    assert connectivity.untracked == ["cat in the network itself"]
    assert not connectivity.edges
    assert [(s.macs, s.has_real_input) for s in connectivity.synapses] == [(2 * 16, True)]


def test_other_products_are_said_to_be_uncounted():
    model = joined(lambda a, b: torch.einsum("tbi,ij,jk->tbk", a, *[torch.ones(4, 4)] * 2))
    assert read_connectivity(model, torch.randn(2, 1, 4)).uncounted
    with pytest.raises(CountError, match="only convolutions and linear layers"):
        lbq.count_macs(model, torch.randn(2, 1, 4))


def first_output(inputs, layer):
    """A layer that answers with a tuple."""
    return Wired(lambda m, x: m.layer(*[x] * inputs)[0], layer=layer)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("bmm in layer", first_output(3, nn.MultiheadAttention(4, 2))),
        ("lstm in layer", first_output(1, nn.LSTM(4, 4))),
        ("gru in layer", first_output(1, nn.GRU(4, 4))),
        ("scaled_dot_product_attention in self_attn", nn.TransformerEncoderLayer(4, 2, 8)),
    ],
)
def test_products_inside_of_larger_operations_are_said_to_be_uncounted(name, model):
    assert set(read_connectivity(model, torch.randn(2, 1, 4)).uncounted) == {name}


def test_a_loop_over_time_is_one_synapse_that_runs_at_every_timestep():
    def loop(m, x):
        return torch.stack([m.out(instant) for instant in m.neuron(x)])

    model = Wired(loop, neuron=lbq.BurstLIF(), out=nn.Linear(4, 2))
    (synapse,) = read_connectivity(model, torch.randn(3, 1, 4)).synapses
    assert (synapse.timesteps, synapse.inputs, synapse.macs) == (3, 4, 3 * 8)


def test_a_synapse_used_again_counts_again():
    neurons = {"a": lbq.BurstLIF(), "b": lbq.BurstLIF()}
    model = Wired(lambda m, x: m.out(m.b(m.out(m.a(x)))), **neurons, out=nn.Linear(4, 4))
    assert [s.macs for s in read_connectivity(model, torch.randn(3, 1, 4)).synapses] == [48, 48]


def test_a_neuron_in_two_places_is_refused():
    neuron = lbq.BurstLIF()
    model = nn.Sequential(neuron, nn.Linear(4, 4), neuron, nn.Linear(4, 2))
    with pytest.raises(CountError, match="runs twice"):
        read_connectivity(model, torch.randn(2, 1, 4))


def test_levels_are_followed_where_they_are_rearranged_in_space():
    model = nn.Sequential(
        lbq.BurstLIF(), OverTime(nn.Unflatten(1, (1, 6, 1)), nn.Conv2d(1, 2, (3, 1)))
    )
    (edge,) = read_connectivity(model, torch.randn(2, 1, 6)).edges
    level = torch.tensor([[1, 0, 2, 0, 0, 3]])
    assert torch.equal(edge.carry({"0": level}), level.reshape(1, 1, 6, 1))
    assert edge.fan_out.flatten().tolist() == [2, 4, 6, 6, 4, 2]


def test_tokens_are_not_taken_for_timesteps():
    model = nn.Sequential(lbq.BurstLIF(), nn.Linear(8, 8))
    (synapse,) = read_connectivity(model, torch.randn(2, 1, 16, 8)).synapses
    assert (synapse.timesteps, synapse.inputs, synapse.macs) == (2, 16 * 8, 2 * 16 * 64)


def test_tracing_leaves_the_model_as_it_was():
    model = lbq.resnet20(10, width=1 / 16).train()
    model.stages[0][0].synapse1[1].eval()  # a frozen batch norm
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    read_connectivity(model, torch.randn(1, 3, 8, 8))
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_batch_is_no_example():
    model = nn.Sequential(lbq.BurstLIF(), nn.Linear(4, 2))
    with pytest.raises(ShapeError, match="must be one sample, but it has shape"):
        read_connectivity(model, torch.randn(2, 3, 4))


def test_a_network_that_cannot_be_exported_is_refused_with_the_line():
    model = Wired(lambda m, x: m.a(x) if x.sum() > 0 else x, a=lbq.BurstLIF())
    with pytest.raises(CountError, match=r"torch.export cannot read .*test_connectivity.py:\d+"):
        read_connectivity(model, torch.ones(2, 1, 4))


def test_a_network_without_a_time_axis_is_refused_as_such():
    forgetful = nn.Sequential(  # every ReLU replaced by a neuron, and nothing that makes time
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), lbq.BurstLIF(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    with pytest.raises(TimeError, match=r"no time axis. Add RepeatOverTime\(T\)"):
        lbq.OpCounter(forgetful, torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("timesteps", [2, 3])
def test_a_batch_of_images_is_no_example_of_a_network_with_time(timesteps):
    model = lbq.resnet20(10, width=1 / 16, timesteps=timesteps)
    with pytest.raises(ShapeError, match="must be one sample"):
        lbq.OpCounter(model, torch.randn(3, 3, 8, 8))


@pytest.mark.parametrize(
    ("is_followed", "pool"),
    [
        (True, nn.MaxPool2d(3, 2, 1)),
        (False, nn.MaxPool2d(3, ceil_mode=True)),
        (False, nn.MaxPool2d(3, dilation=2)),
        (True, nn.AvgPool2d((2, 3))),
        (False, nn.AvgPool2d(3, padding=1, count_include_pad=False)),
        (True, nn.AdaptiveAvgPool2d((2, 3))),
        (False, nn.AdaptiveAvgPool2d((3, 4))),
    ],
)
def test_pools_are_followed_where_they_are_exact(is_followed, pool):
    model = nn.Sequential(lbq.BurstLIF(), OverTime(pool, nn.Conv2d(2, 2, 1)))
    connectivity = read_connectivity(model, torch.zeros(1, 1, 2, 8, 6))
    assert bool(connectivity.edges) is is_followed
    assert bool(connectivity.untracked) is not is_followed
