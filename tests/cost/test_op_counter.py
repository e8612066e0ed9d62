"""The counter against a loop that really performs every accumulation."""

import itertools
import random

import pytest
import torch
from torch import nn

import lbq
import lbq.functional as lbqf
from lbq.cost import CountTable
from lbq.errors import CountError, LevelError, ShapeError, TimeError
from lbq.neurons import TernaryLIF
from lbq.time import MeanOverTime, OverTime


def convolve_by_hand(level, conv, performed):
    """Add up a convolution event by event, in integers, noting every accumulation performed."""
    weight = conv.weight.detach().long()
    (_, height, width), (outs, per_group, kh, kw) = level.shape, weight.shape
    oh = (height + 2 * conv.padding[0] - conv.dilation[0] * (kh - 1) - 1) // conv.stride[0] + 1
    ow = (width + 2 * conv.padding[1] - conv.dilation[1] * (kw - 1) - 1) // conv.stride[1] + 1
    out = torch.zeros(outs, oh, ow, dtype=torch.int64)
    for o, y, x, c, i, j in itertools.product(*map(range, (outs, oh, ow, per_group, kh, kw))):
        source = (o // (outs // conv.groups)) * per_group + c
        row = y * conv.stride[0] - conv.padding[0] + i * conv.dilation[0]
        column = x * conv.stride[1] - conv.padding[1] + j * conv.dilation[1]
        if 0 <= row < height and 0 <= column < width:
            level_here = int(level[source, row, column])
            for k in range(level_here.bit_length()):
                if level_here >> k & 1:
                    out[o, y, x] += int(weight[o, c, i, j]) << k
                    performed["bit_sparse"] += 1
                    performed["shifts"] += k > 0
            performed["unary"] += level_here
            performed["events"] += level_here > 0
    return out


def random_conv(rng, channels):
    groups = rng.choice([g for g in (1, 2) if channels % g == 0])
    conv = nn.Conv2d(
        channels,
        groups * rng.randint(1, 2),
        (rng.randint(1, 3), rng.randint(1, 3)),
        stride=(rng.randint(1, 2), rng.randint(1, 2)),
        padding=(rng.randint(0, 1), rng.randint(0, 2)),
        dilation=rng.randint(1, 2),
        groups=groups,
        bias=False,
    ).double()
    with torch.no_grad():
        conv.weight.copy_(torch.randint(-9, 10, conv.weight.shape).double())
    return conv


@pytest.mark.parametrize("seed", range(10))
def test_counts_are_the_accumulations_that_a_loop_performs(seed):  # 500 random networks
    for draw in range(50):
        rng = random.Random(seed * 50 + draw)
        torch.manual_seed(seed * 50 + draw)
        channels, max_level = rng.randint(1, 2), rng.choice([1, 2, 5, 20, 255])
        conv = random_conv(rng, channels)
        with_linear = rng.random() < 0.5
        size, batch, timesteps = (rng.randint(5, 6), rng.randint(5, 6)), rng.randint(1, 2), 2
        frames = max_level * torch.rand(timesteps, batch, channels, *size, dtype=torch.float64)
        layers = [lbq.BurstLIF(max_level).double(), OverTime(conv)]
        outputs = conv(frames[0]).shape
        if with_linear:
            features = outputs[1:].numel()
            layers += [
                lbq.BurstLIF(5).double(),
                OverTime(nn.Flatten(), nn.Linear(features, 3).double()),
            ]
        model = nn.Sequential(*layers).double()
        levels = {}
        counter = lbq.OpCounter(model, frames[:, :1])

        def watch(layer, t, level, seen=levels, count=counter):
            seen[layer, t] = level.clone()
            count(layer, t, level)

        with lbq.watch_levels(model, watch):
            model(frames)
        performed = dict.fromkeys(("unary", "bit_sparse", "shifts", "events"), 0)
        for t, b in itertools.product(range(timesteps), range(batch)):
            summed = convolve_by_hand(levels["0", t][b], conv, performed)
            assert torch.equal(summed.double(), conv(levels["0", t][b : b + 1].double())[0])
            for level in levels["2", t][b].flatten().tolist() if with_linear else ():
                for _ in range(3):
                    performed["unary"] += level
                    performed["bit_sparse"] += level.bit_count()
                    performed["shifts"] += (level >> 1).bit_count()
                    performed["events"] += level > 0
        total = counter.table().total()
        assert performed == {
            "unary": total.unary_acs,
            "bit_sparse": total.bit_sparse_acs,
            "shifts": total.explicit_shifts,
            "events": total.unit_event_acs,
        }
        formed = sum(layer.plane_formations for layer in counter.table().layers)
        assert formed == sum(
            int(level).bit_count() for found in levels.values() for level in found.flatten()
        )


def run(model, inputs, counter=None):
    counter = counter or lbq.OpCounter(model, inputs[:1])
    with torch.no_grad(), lbq.watch_levels(model, counter):
        model(inputs)
    return counter


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=1 / 16, max_level=5)
    images = torch.randn(6, 3, 16, 16)
    model(images)  # batch norm sees some data, so that deep layers are not silent
    return model.eval(), images


def test_large_batches_and_levels_do_not_overflow_a_lane():
    model = nn.Sequential(lbq.BurstLIF(255, step=1.0), nn.Linear(3, 2))
    counter = lbq.OpCounter(model, torch.zeros(1, 1, 3))
    with lbq.watch_levels(model, counter):
        model(torch.full((1, 700, 3), 255.5))
    total = counter.table().total()
    assert total.unary_acs == 700 * 3 * 2 * 255
    assert total.bit_sparse_acs == 700 * 3 * 2 * 8


def test_batches_add_up_to_the_whole(small):
    model, images = small
    whole, parts = run(model, images).table(), run(model, images[:1])
    run(model, images[1:], parts)
    assert parts.table() == whole
    assert whole.num_images == 6


def test_edges_and_timesteps_add_up_to_the_total(small):
    model, images = small
    table = run(model, images).table()
    total = table.total()
    assert sum(c.bit_sparse_acs for c in table.by_edge().values()) == total.bit_sparse_acs
    assert sum(c.unary_acs for c in table.by_timestep()) == total.unary_acs
    assert 0 < total.unit_event_acs <= total.bit_sparse_acs <= total.unary_acs
    assert 0 < table.active_ratio() < 1
    assert table.fp_macs(padding="counted") == 6 * 27 * 8 * 16 * 16
    assert table.fp_macs() == 6 * 3 * 8 * (3 * 16 - 2) ** 2  # without the padding of the stem
    assert table.identities().unary_acs > 0


def test_a_max_pool_is_counted_on_what_it_lets_through():
    model = nn.Sequential(lbq.BurstLIF(step=1.0), OverTime(nn.MaxPool2d(2), nn.Conv2d(1, 3, 1)))
    frames = torch.tensor([[1.5, 2.5, 0, 0], [3.5, 0, 0, 0]]).reshape(1, 1, 1, 2, 4)
    table = run(model, frames, lbq.OpCounter(model, frames)).table()
    assert table.total().unary_acs == 3 * 3  # one pooled level of 3, three outputs
    assert table.plane_formations() == 1 + 1 + 2  # formed before the pool: levels 1, 2, 3


def test_the_tally_agrees_with_the_equations():  # Eqs. 16-18, written down in lbq.functional
    model = nn.Sequential(lbq.BurstLIF(255, step=1.0), OverTime(nn.Conv2d(3, 5, 3, padding=1)))
    frames, levels = 300 * torch.rand(2, 4, 3, 6, 6), []
    counter = lbq.OpCounter(model, frames[:, :1])
    with lbq.watch_levels(model, lambda layer, t, level: levels.append(level)):
        run(model, frames, counter)
    fan_out = lbq.cost.read_connectivity(model, frames[:, :1]).edges[0].fan_out
    total, level = counter.table().total(), torch.stack(levels)
    assert total.unary_acs == lbqf.unary_acs(level, fan_out)
    assert total.bit_sparse_acs == lbqf.bit_sparse_acs(level, fan_out)
    assert total.explicit_shifts == lbqf.explicit_shifts(level, fan_out)
    assert total.unit_event_acs == lbqf.unit_event_acs(level, fan_out)
    assert counter.table().plane_formations() == lbqf.plane_formations(level)


def test_a_max_pool_lets_negative_levels_lose():
    model = nn.Sequential(TernaryLIF(), OverTime(nn.MaxPool2d(2), nn.Conv2d(1, 3, 1)))
    frames = torch.tensor([[-3.0, 0.0], [0.0, -3.0]]).reshape(1, 1, 1, 2, 2)
    assert run(model, frames, lbq.OpCounter(model, frames)).table().total().unit_event_acs == 0
    assert run(model, -frames, lbq.OpCounter(model, frames)).table().total().unit_event_acs == 3


def test_a_layer_of_one_neuron_without_an_axis_is_counted():
    model, frames = nn.Sequential(lbq.BurstLIF(step=1.0)), torch.full((2, 5), 3.5)
    layers = run(model, frames, lbq.OpCounter(model, frames[:, :1])).table().layers
    assert [layer.active for layer in layers] == [5, 5]


def test_an_empty_batch_counts_nothing(small):
    model, images = small
    counter = run(model, images[:0], lbq.OpCounter(model, images[:1]))
    assert counter.table().total().unary_acs == 0


def test_a_network_without_levels_is_refused():
    with pytest.raises(CountError, match=r"no neuron of this model.*count_macs"):
        lbq.OpCounter(nn.Linear(4, 2), torch.zeros(1, 4))


def test_ternary_events_count_once_whatever_their_sign():
    model = nn.Sequential(TernaryLIF(), nn.Linear(4, 5))
    frames = torch.tensor([[[-3.0, 0.0, 3.0, 0.5]]])
    total = run(model, frames, lbq.OpCounter(model, frames)).table().total()
    assert total.unary_acs == total.bit_sparse_acs == total.unit_event_acs == 2 * 5
    assert total.explicit_shifts == 0


def test_levels_of_an_unknown_layer_are_refused(small):
    model, images = small
    with pytest.raises(LevelError, match=r"no such neuron.*create the counter from the model"):
        lbq.OpCounter(model, images[:1])("elsewhere", 0, torch.zeros(1, 4, dtype=torch.uint8))


def test_a_table_survives_saving(small, tmp_path):
    model, images = small
    table = run(model, images).table()
    table.save(tmp_path / "counts.json")
    assert CountTable.load(tmp_path / "counts.json") == table


class Tokens(nn.Module):
    """Two linear layers around a neuron, ``[T, B, N, D]``, with axes folded in some way."""

    def __init__(self, fold):
        super().__init__()
        self.fold, self.neuron = fold, lbq.BurstLIF(step=0.1)
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.fold(self.two, self.neuron(self.fold(self.one, x))).mean((0, 2))


FOLDS = {
    "none": lambda layer, x: layer(x),
    "time and batch": lambda layer, x: layer(x.flatten(0, 1)).unflatten(0, x.shape[:2]),
    "tokens too": lambda layer, x: layer(x.reshape(-1, 64)).reshape(*x.shape[:-1], -1),
    "tokens first": lambda layer, x: layer(x.permute(2, 1, 0, 3)).permute(2, 1, 0, 3),
    "instant by instant": lambda layer, x: torch.stack([layer(instant) for instant in x]),
}


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("timesteps", [1, 8, 16])  # 16 is the number of tokens as well
def test_an_ann_runs_linear_layers_once_however_tokens_are_folded_with_time(fold, timesteps):
    model = Tokens(FOLDS[fold]).eval()
    counter = lbq.OpCounter(model, torch.rand(timesteps, 1, 16, 64), batch_axis=1)
    with torch.no_grad(), lbq.watch_levels(model, counter):
        model(torch.rand(timesteps, 3, 16, 64))
    assert counter.table().ann_macs() == 16 * 64 * 64 + 16 * 64 * 10 == 75_776


def frames_network():
    torch.manual_seed(0)
    return nn.Sequential(
        OverTime(nn.Conv2d(2, 4, 3, padding=1)), lbq.BurstLIF(step=0.3),
        OverTime(nn.Conv2d(4, 4, 3, padding=1)), lbq.BurstLIF(step=0.3),
        OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)), MeanOverTime(),
    ).eval()  # fmt: skip


def test_more_timesteps_than_the_example_had_are_refused():
    model = frames_network()
    counter = lbq.OpCounter(model, torch.randn(2, 1, 2, 6, 6))
    with pytest.raises(TimeError, match=r"timestep 3, but in the example it had 2; create"):
        run(model, torch.randn(8, 4, 2, 6, 6), counter)


def test_fewer_timesteps_than_the_example_had_are_refused():
    model = frames_network()
    counter = run(
        model, torch.randn(2, 4, 2, 6, 6), lbq.OpCounter(model, torch.randn(8, 1, 2, 6, 6))
    )
    with pytest.raises(CountError, match=r"0 sample\(s\) at timestep 3.*of 4 at timestep 1"):
        counter.table()


@pytest.mark.parametrize(
    ("example", "ran"), [((6, 6), (1, 1)), ((6, 6), (1, 6)), ((1, 1), (6, 6)), ((1, 6), (6, 6))]
)
def test_another_size_than_the_example_had_is_refused(example, ran):
    model = frames_network()
    counter = lbq.OpCounter(model, torch.randn(2, 1, 2, *example))
    with pytest.raises(ShapeError, match=rf"\[4, {ran[0]}, {ran[1]}\] per sample, but for the ex"):
        run(model, torch.randn(2, 3, 2, *ran), counter)


def test_a_network_that_takes_the_batch_as_time_is_refused():
    forgetful = nn.Sequential(nn.Linear(6, 1), lbq.BurstLIF(), nn.Linear(1, 2))
    with pytest.raises(TimeError, match=r"1 emits \[B, 1\]\..*no time axis"):
        lbq.OpCounter(forgetful, torch.randn(1, 6))  # [1, 1]: the shape itself tells nothing


@pytest.mark.parametrize("is_training", [True, False])
def test_one_call_counts_what_the_counter_counts_and_leaves_the_model_as_it_was(is_training):
    torch.manual_seed(0)
    model, images = lbq.resnet20(10, width=1 / 16).train(is_training), torch.randn(3, 3, 8, 8)
    model.stages[0].eval()  # modes differ between modules
    modes = [module.training for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    counts = lbq.count_ops(model, images)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    model.eval()
    counter = lbq.OpCounter(model, images[:1])
    with torch.no_grad(), lbq.watch_levels(model, counter):
        model(images)
    assert counts == counter.table()


def test_the_modes_are_restored_after_an_error():
    model = nn.Sequential(nn.Linear(4, 4), lbq.RepeatOverTime(2), lbq.BurstLIF()).train()
    with pytest.raises(CountError, match="axis 0"):
        lbq.count_ops(model, torch.ones(3, 5))
    assert all(module.training for module in model.modules())


def test_one_call_takes_lowered_and_integer_networks():
    torch.manual_seed(0)
    model, images = lbq.resnet20(10, width=1 / 16).eval(), torch.randn(3, 3, 8, 8)
    lowered = lbq.lower(model, images)
    assert lbq.count_ops(lowered, images).total() == lbq.count_ops(model, images).total()
    integers = lbq.to_fixed_point(lowered, pixels=None)
    assert lbq.count_ops(integers, images.to(torch.uint8)).num_images == 3


def test_an_ann_is_sent_to_count_macs():
    with pytest.raises(CountError, match=r"lbq\.count_macs counts MACs"):
        lbq.count_ops(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.ones(3, 4))


def test_an_axis_that_is_not_the_batch_is_named():
    tokens = nn.Sequential(nn.Linear(4, 4), lbq.BurstLIF(), nn.Linear(4, 2))
    x = torch.rand(2, 3, 5, 4)  # [T, B, tokens, features]
    with pytest.raises(TimeError, match=r"assumed to be axis 0 .*pass batch_axis"):
        lbq.count_ops(tokens, x)
    assert lbq.count_ops(tokens, x, batch_axis=1).num_images == 3
    with pytest.raises(ShapeError, match="axis 0"):
        lbq.count_ops(tokens, torch.rand(0, 4))
