"""Our neurons inside SpikingJelly's networks, its nodes inside ours: equal outputs both ways."""

import os

import pytest
import torch
from torch import nn

import lbq
from lbq import neurons
from lbq.time import OverTime

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    pytest.importorskip("spikingjelly", reason="installed by .ci/external")

from spikingjelly.activation_based import functional, layer, neuron, surrogate
from spikingjelly.activation_based.base import to_functional_forward

from lbq.adapters.spikingjelly import BurstNode, NodeNeuron

T, B = 5, 3


def draw(*shape):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def lif(**options):
    return neuron.LIFNode(
        tau=2.0, decay_input=False, v_reset=None, detach_reset=True, step_mode="m", **options
    )


def integer_lif(max_level):
    levels = surrogate.MultiLevelSpikeCount(max_level)
    return neuron.ILIFNode(tau=2.0, surrogate_function=levels, detach_reset=True)


def their_network(*, build=lambda: BurstNode(lbq.BurstLIF())):
    torch.manual_seed(0)
    return nn.Sequential(
        layer.Conv2d(2, 4, 3, padding=1),
        build(),
        layer.Flatten(),
        layer.Linear(4 * 36, 10),
        build(),
    )


def our_network():
    torch.manual_seed(0)
    return nn.Sequential(
        OverTime(nn.Conv2d(2, 4, 3, padding=1)),
        lbq.BurstLIF(),
        OverTime(nn.Flatten(), nn.Linear(4 * 36, 10)),
        lbq.BurstLIF(),
    )


# --- ours inside theirs


def test_a_multi_step_network_of_theirs_answers_as_ours_does():
    theirs = their_network()
    functional.set_step_mode(theirs, "m")
    frames = draw(T, B, 2, 6, 6)
    found = theirs(frames)
    assert found.any()
    torch.testing.assert_close(found, our_network()(frames), rtol=0, atol=0)


def test_a_single_step_network_answers_instant_by_instant_what_it_answers_at_once():
    theirs, frames = their_network(), draw(T, B, 2, 6, 6)
    by_instant = torch.stack([theirs(frame) for frame in frames])
    functional.reset_net(theirs)
    functional.set_step_mode(theirs, "m")
    # a convolution over T * B images may sum in another order than over B
    torch.testing.assert_close(by_instant, theirs(frames))


def test_state_stays_until_reset_net_and_is_rest_afterwards():
    node, currents = BurstNode(lbq.BurstLIF(), step_mode="m"), draw(2, B, 4)
    first, second = node(currents), node(currents)
    assert not torch.equal(first, second)
    whole = lbq.BurstLIF()(torch.cat([currents, currents]))
    assert torch.equal(torch.cat([first, second]), whole)
    functional.reset_net(node)
    assert torch.equal(node(currents), first)
    functional.reset_net(node)
    assert node(draw(2, B + 1, 4)).shape == (2, B + 1, 4)  # another batch size


def test_detach_net_cuts_the_gradient_between_calls():
    node, currents = BurstNode(lbq.BurstLIF()), draw(2, B, 4).requires_grad_()
    node(currents[0])
    functional.detach_net(node)
    node(currents[1]).sum().backward()
    assert not currents.grad[0].any()
    assert currents.grad[1].any()


def test_gradients_are_those_of_our_neuron():
    currents = draw(T, B, 4)
    found = []
    for build in (lbq.BurstLIF, lambda: BurstNode(lbq.BurstLIF(), step_mode="m")):
        torch.manual_seed(1)
        module, leaf = build(), currents.clone().requires_grad_()
        (module(leaf) * currents).sum().backward()
        found.append([leaf.grad, *(p.grad for p in module.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_its_functional_form_keeps_the_state_outside():
    node, currents = BurstNode(lbq.BurstLIF(), step_mode="m"), draw(2, B, 4)
    run = to_functional_forward(node)
    (first,), states = run((currents,), tuple(node.memories()))
    assert node.carry is None
    (second,), _ = run((currents,), states)
    assert torch.equal(torch.cat([first, second]), lbq.BurstLIF()(torch.cat([currents, currents])))


def test_state_is_not_part_of_the_state_dict():
    node = BurstNode(lbq.BurstLIF(), step_mode="m")
    before = set(node.state_dict())
    node(draw(T, B, 4))
    assert set(node.state_dict()) == before


# --- theirs inside ours


@pytest.mark.parametrize(
    ("node", "relative"),
    [
        (lambda: integer_lif(5), lambda: neurons.IntegerLIF(5, decay=0.5)),
        (integer_lif, None),
        (lif, None),
    ],
    ids=["I-LIF and our relative", "I-LIF", "LIF"],
)
def test_their_node_gives_in_our_network_what_it_gives_alone(node, relative):
    build = node if node is not integer_lif else lambda: integer_lif(3)
    alone, currents = build(), draw(T, B, 4)
    alone.step_mode = "m"
    adapted = NodeNeuron(build())
    found = adapted(currents)
    assert found.any()
    assert torch.equal(found, alone(currents))
    assert torch.equal(adapted(currents), found)  # from rest, always
    if relative is not None:
        assert torch.equal(found, relative()(currents))


def test_their_levels_are_watched_and_counted():
    model = nn.Sequential(
        OverTime(nn.Linear(6, 8)), NodeNeuron(integer_lif(5)), OverTime(nn.Linear(8, 3))
    )
    x, seen = 3 * draw(T, B, 6), []
    counter = lbq.OpCounter(model, x[:, :1])
    with (
        torch.no_grad(),
        lbq.watch_levels(model, lambda *one: seen.append(one[2])),
        lbq.watch_levels(model, counter),
    ):
        model(x)
    levels = torch.stack(seen)
    assert levels.max() > 1
    assert counter.table().total().unary_acs == int(levels.sum()) * 3


def test_pieces_of_a_stream_are_the_whole_sequence():
    adapted, currents = NodeNeuron(lif()), draw(T, B, 4)
    first, carry = adapted.stream(currents[:2], None)
    second, _ = adapted.stream(currents[2:], carry)
    assert torch.equal(torch.cat([first, second]), adapted(currents))


def test_a_network_that_mixes_both_trains():
    torch.manual_seed(0)
    model = nn.Sequential(
        OverTime(nn.Linear(6, 32)),
        NodeNeuron(lif(surrogate_function=surrogate.ATan())),
        OverTime(nn.Linear(32, 32)),
        lbq.BurstLIF(),
        OverTime(nn.Linear(32, 3)),
    )
    x = draw(T, 64, 6)
    target = (x[0, :, 0] > 0).long() + (x[0, :, 1] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(x).mean(0), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_values_that_are_no_levels_are_refused():
    with pytest.raises(lbq.LBQError, match=r"not integers in 0\.\.1"):
        NodeNeuron(integer_lif(5), max_level=1)(3 * draw(T, B, 4))
    with pytest.raises(lbq.LBQError, match="membrane potential"):
        NodeNeuron(nn.ReLU())
