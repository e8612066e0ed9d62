"""Our neurons in snnTorch's loops: (spk, mem) like theirs, and both train in one network."""

import os

import pytest
import torch
from torch import nn

import lbq
from lbq.adapters.snntorch import Burst

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    pytest.importorskip("snntorch", reason="installed by .ci/external")

import snntorch

T, B = 5, 3


def draw(*shape):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def walk(neuron, currents):
    """The loop of snnTorch's tutorials."""
    mem, spikes = neuron.reset_mem(), []
    for cur in currents:
        spk, mem = neuron(cur, mem)
        spikes.append(spk)
    return torch.stack(spikes)


def test_their_loop_gives_what_our_neuron_gives_at_once():
    currents = draw(T, B, 4)
    found = walk(Burst(lbq.BurstLIF()), currents)
    assert found.any()
    assert torch.equal(found, lbq.BurstLIF()(currents))


def test_their_loop_takes_their_neuron_and_our_relative_alike():
    currents = draw(T, B, 4)
    theirs = walk(snntorch.Leaky(beta=0.5), currents)
    assert theirs.any()
    assert torch.equal(theirs, walk(Burst(lbq.neurons.BinaryLIF()), currents))


def test_gradients_of_the_loop_are_those_of_the_sequence():
    found = []
    for run in (lambda neuron, x: neuron(x), lambda neuron, x: walk(Burst(neuron), x)):
        neuron, leaf = lbq.BurstLIF(), draw(T, B, 4).requires_grad_()
        (run(neuron, leaf) * draw(T, B, 4)).sum().backward()
        found.append([leaf.grad, neuron.step.raw_step.grad])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif = nn.Linear(6, 32), snntorch.Leaky(beta=0.5)
        self.fc2, self.burst = nn.Linear(32, 32), Burst(lbq.BurstLIF())
        self.fc3 = nn.Linear(32, 3)

    def forward(self, frames):
        mem1, mem2, logits = self.lif.reset_mem(), self.burst.reset_mem(), 0
        for frame in frames:
            spk, mem1 = self.lif(self.fc1(frame), mem1)
            spk, mem2 = self.burst(self.fc2(spk), mem2)
            logits = logits + self.fc3(spk)
        return logits / len(frames)


def test_a_network_that_mixes_both_trains():
    torch.manual_seed(0)
    model, x = Mixed(), draw(T, 64, 6)
    target = (x[0, :, 0] > 0).long() + (x[0, :, 1] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before, losses = model.burst.neuron.step().item(), []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert model.burst.neuron.step().item() != before


def test_a_membrane_of_another_batch_is_refused():
    neuron = Burst(lbq.BurstLIF())
    _, mem = neuron(draw(B, 4))
    with pytest.raises(lbq.LBQError, match="reset_mem"):
        neuron(draw(B + 1, 4), mem)
