"""The neurons that docs/how-to/sinabs.md names as each other's counterparts: equal levels."""

import os

import pytest
import torch
from torch import nn

import lbq

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    pytest.importorskip("sinabs", reason="installed by .ci/external")

import sinabs.layers as sl
from sinabs.activation import MaxSpike, MembraneReset, SingleSpike

T, B = 6, 8


def draw():
    return 2 * torch.randn(T, B, 40, generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def their_levels(neuron, currents):
    """Time is their second axis; what they send is the level itself."""
    return neuron(currents.transpose(0, 1)).transpose(0, 1)


def our_levels(neuron, currents):
    found = []
    with torch.no_grad(), lbq.watch_levels(neuron, lambda _, t, level: found.append(level.clone())):
        neuron(currents)
    return torch.stack(found).float()


@pytest.fixture(params=[1.0, 0.5, 0.3])
def threshold(request):
    return request.param


def test_an_iaf_with_multispike_is_a_neuron_that_forgets_nothing(threshold):
    theirs = their_levels(sl.IAF(spike_threshold=torch.tensor(threshold)), draw())
    ours = lbq.BurstLIF(255, step=threshold, decay=1.0, reset_mode="level")
    assert theirs.max() > 5
    assert torch.equal(theirs, our_levels(ours, draw()))


def test_maxspike_is_the_largest_level(threshold):
    neuron = sl.IAF(spike_threshold=torch.tensor(threshold), spike_fn=MaxSpike(5))
    ours = lbq.BurstLIF(5, step=threshold, decay=1.0, reset_mode="level")
    assert torch.equal(their_levels(neuron, draw()), our_levels(ours, draw()))


def test_singlespike_is_a_largest_level_of_one(threshold):
    neuron = sl.IAF(spike_threshold=torch.tensor(threshold), spike_fn=SingleSpike)
    ours = lbq.BurstLIF(1, step=threshold, decay=1.0)
    assert torch.equal(their_levels(neuron, draw()), our_levels(ours, draw()))


@pytest.mark.parametrize("norm_input", [False, True])
def test_a_lif_keeps_the_share_of_its_time_constant(threshold, norm_input):
    theirs = sl.LIF(3.0, spike_threshold=torch.tensor(threshold), norm_input=norm_input)
    decay = theirs.alpha_mem_calculated.item()  # exp(-1 / 3)
    ours = lbq.BurstLIF(255, step=threshold, decay=decay, reset_mode="level")
    currents = (1 - decay) * draw() if norm_input else draw()
    assert torch.equal(their_levels(theirs, draw()), our_levels(ours, currents))


def test_theirs_remembers_between_calls_as_our_carry_does():
    theirs, ours = sl.IAF(), lbq.BurstLIF(255, step=1.0, decay=1.0, reset_mode="level")
    first, second = draw().split(T // 2)
    their_levels(theirs, first)
    with torch.no_grad():
        _, carry = ours.stream(first, None)
        bursts, _ = ours.stream(second, carry)
    remembered = their_levels(theirs, second)
    assert torch.equal(remembered, bursts)
    theirs.reset_states()
    assert not torch.equal(their_levels(theirs, second), remembered)


@pytest.mark.parametrize(
    "options", [{"min_v_mem": -1.0}, {"reset_fn": MembraneReset()}, {"tau_syn": 2.0}]
)
def test_what_has_no_counterpart_here_gives_other_levels(options):
    plain = their_levels(sl.IAF(), draw())
    assert not torch.equal(their_levels(sl.IAF(**options), draw()), plain)


def test_a_moved_network_gives_the_same_currents_behind_divided_weights():
    torch.manual_seed(0)
    first, second = nn.Linear(40, 30), nn.Linear(30, 10)
    expected = second(their_levels(sl.IAF(spike_threshold=torch.tensor(0.3)), first(draw())))
    neuron = lbq.BurstLIF(255, step=0.3, decay=1.0, reset_mode="level")
    with torch.no_grad():
        second.weight /= 0.3
    torch.testing.assert_close(second(neuron(first(draw()))), expected)
