"""How often a synapse runs, derived from the input it descends from."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from wired import Wired

import lbq
from lbq.cost import read_connectivity
from lbq.time import MeanOverTime, OverTime, RepeatOverTime

T, N, D = 4, 3, 5


def behind(do, features=D):
    """A linear layer behind something that is done to bursts ``[T, 1, N, D]``."""
    neuron, out = lbq.BurstLIF(step=0.1), nn.Linear(features, 2)
    return Wired(lambda m, x: m.out(do(m.neuron(x))), neuron=neuron, out=out)


def sizes(model, example):
    return [(s.name, s.timesteps, s.inputs) for s in read_connectivity(model, example).synapses]


@pytest.mark.parametrize(
    "do",
    [
        F.relu,
        lambda b: F.gelu(b).reshape(-1, D),
        lambda b: b.permute(2, 0, 1, 3).reshape(-1, D),
        lambda b: F.layer_norm(b, (D,)),
        lambda b: b * b,
        lambda b: b @ torch.ones(D, D),
        lambda b: torch.einsum("tbnd->btnd", b),
        lambda b: (b @ b.transpose(-2, -1)) @ b,
        lambda b: F.scaled_dot_product_attention(b, b, b),
        lambda b: b * b.mean(-1, keepdim=True),
        lambda b: torch.stack(list(b)),
        lambda b: F.pad(b, (1, 1))[..., 1:-1],
        lambda b: F.max_pool1d(b.flatten(0, 1), 1).squeeze(1),
    ],
)  # fmt: skip
def test_time_survives_operations_that_lose_the_levels(do):
    assert sizes(behind(do), torch.randn(T, 1, N, D))[-1] == ("out", T, N * D)


@pytest.mark.parametrize(
    ("do", "instants", "features"),
    [
        (lambda b: b.mean(0), 1, D),
        (lambda b: b.sum((0, 2)), 1, D),
        (lambda b: b.amax(0), 1, D),
        (lambda b: b[0] + b[1] + b[2] + b[3], 1, D),
        (lambda b: b[-1], 1, D),
        (lambda b: b.permute(1, 2, 0, 3).flatten(2), 1, T * D),
        (lambda b: F.relu(b).max(0).values, 1, D),
    ],
)
def test_what_is_averaged_or_picked_out_of_time_runs_less_often(do, instants, features):
    ((_, found, inputs),) = sizes(behind(do, features), torch.randn(T, 1, N, D))
    assert found == instants
    assert inputs * instants == do(torch.zeros(T, 1, N, D)).numel()


@pytest.mark.parametrize(
    "do",
    [
        lambda b: b.reshape(2, 2, -1, N, D).mean(1),
        lambda b: torch.cat([b, torch.zeros_like(b[:1])]),
        lambda b: torch.cat([b, b[:1]]),
        lambda b: torch.cat([b[:1], b[1:]]),
        lambda b: torch.stack(b.unbind(0), 2),
        lambda b: b[1:],
    ],
)
def test_what_cannot_be_told_is_unknown_and_noted(do):
    model = behind(do)
    assert [s[1] for s in sizes(model, torch.randn(T, 1, N, D))] == [None]
    table = lbq.OpCounter(model, torch.randn(T, 1, N, D)).table()
    assert "Timesteps unknown, so MACs of the ANN are not given: out." in table.notes
    with pytest.raises(lbq.errors.CountError, match="number of timesteps of out is unknown"):
        table.ann_macs()


def repeated(repeat, *, first):
    """A still image that is repeated over time by hand, before or behind a convolution."""

    def wire(m, x):
        if first:
            x = repeat(x)
            x = m.conv(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        else:
            x = repeat(m.conv(x))
        return m.out(m.neuron(x).mean((-2, -1))).mean(0)

    return Wired(wire, conv=nn.Conv2d(3, 4, 3), neuron=lbq.BurstLIF(), out=nn.Linear(4, 2))


def filled(x):
    sequence = torch.zeros(T, *x.shape)
    for t in range(T):
        sequence[t] = x
    return sequence


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "repeat",
    [
        RepeatOverTime(T),
        lambda x: x.unsqueeze(0).expand(T, -1, -1, -1, -1),
        lambda x: x.unsqueeze(0).repeat(T, 1, 1, 1, 1),
        lambda x: x[None].repeat_interleave(T, 0),
        lambda x: torch.stack([x] * T),
        lambda x: torch.cat([x[None]] * T),
        lambda x: x + torch.zeros(T, 1, 1, 1, 1),
        filled,
    ],
)
def test_a_still_image_may_be_repeated_by_hand(repeat, first):
    conv, out = sizes(repeated(repeat, first=first), torch.randn(1, 3, 6, 6))
    assert conv == ("conv", T if first else 1, 3 * 6 * 6)
    assert out == ("out", T, 4)


def test_a_convolution_of_the_same_still_image_at_every_timestep_is_one_synapse():
    def again(m, x):
        return m.neuron(torch.stack([m.conv(x) for _ in range(T)]))

    model = Wired(again, conv=nn.Conv2d(3, 4, 3), neuron=lbq.BurstLIF())
    assert sizes(model, torch.randn(1, 3, 6, 6)) == [("conv", T, 3 * 6 * 6)]


def test_tokens_before_the_neurons_are_not_taken_for_timesteps():
    def patches(m, x):
        tokens = m.embed(x.reshape(-1, D)).reshape(x.shape)
        return m.out(m.neuron(torch.stack([tokens] * T)).mean(2)).mean(0)

    model = Wired(patches, embed=nn.Linear(D, D), neuron=lbq.BurstLIF(), out=nn.Linear(D, 2))
    example = torch.randn(1, T, D)  # as many tokens as timesteps
    assert sizes(model, example) == [("embed", 1, T * D), ("out", T, D)]


def test_time_that_begins_unseen_is_not_guessed():
    def unseen(m, x):
        rows = m.stem(x).repeat(1, T).reshape(-1, T, D)
        return m.out(m.neuron(rows.transpose(0, 1))).mean(0)

    model = Wired(unseen, stem=nn.Linear(D, D), neuron=lbq.BurstLIF(), out=nn.Linear(D, 2))
    assert sizes(model, torch.randn(1, D)) == [("stem", None, D), ("out", T, D)]


def test_frames_are_seen_by_the_neuron_that_reads_them():
    model = nn.Sequential(
        OverTime(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), lbq.BurstLIF(),
        OverTime(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 2)), MeanOverTime(), nn.Linear(2, 2),
    )  # fmt: skip
    found = [(name, instants) for name, instants, _ in sizes(model, torch.randn(T, 1, 2, 6, 6))]
    assert found == [("0.0", T), ("2.2", T), ("4", 1)]


def test_a_lowered_network_runs_its_synapses_as_often():
    model = lbq.resnet20(10, width=1 / 16, timesteps=3).eval()
    image = torch.randn(1, 3, 16, 16)
    trained, lowered = (
        read_connectivity(each, image).synapses for each in (model, lbq.lower(model, image))
    )
    assert sorted((s.timesteps, s.macs, s.padded_macs) for s in trained) == sorted(
        (s.timesteps, s.macs, s.padded_macs) for s in lowered
    )
