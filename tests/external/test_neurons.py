"""The neurons that the benchmarks borrow are what their rows say: our relatives, or the equations.

Without this a row could time another neuron than the one it is compared with.
"""

import os

import pytest
import torch

from lbq import neurons

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    for package in ("snntorch", "spikingjelly"):
        pytest.importorskip(package, reason=f"{package} is installed by .ci/external")

from other_neurons import other_neurons

BORROWED = other_neurons(max_level=5)


def build(name):
    (found,) = [builder for row, builder in BORROWED.items() if row.endswith(name)]
    return found()


def draw_currents():
    return 2 * torch.randn(6, 4, 3, 5, 5, generator=torch.Generator().manual_seed(1))


def run(neuron, currents):
    leaf = currents.clone().requires_grad_()
    bursts = neuron(leaf)
    weights = torch.randn(bursts.shape, generator=torch.Generator().manual_seed(2))
    return bursts.detach(), torch.autograd.grad((bursts * weights).sum(), leaf)[0]


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("I-LIF", lambda: neurons.IntegerLIF(5, decay=0.5)),
        ("Leaky", neurons.BinaryLIF),
    ],
)
def test_they_emit_and_learn_as_our_relatives_do(name, relative):
    (bursts, grad), (expected, expected_grad) = (
        run(neuron, draw_currents()) for neuron in (build(name), relative())
    )
    assert torch.equal(bursts, expected)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-5, atol=1e-6)


def test_the_lif_decays_by_half_and_is_reset_by_its_threshold():
    currents = draw_currents()
    carry = torch.zeros_like(currents[0])
    for current, spike in zip(currents, build(" LIF")(currents), strict=True):
        membrane = 0.5 * carry + current
        assert torch.equal(spike, (membrane >= 1).float())
        carry = membrane - spike


@pytest.mark.parametrize("row", BORROWED)
def test_they_start_every_sequence_from_rest(row):
    neuron, currents = BORROWED[row](), draw_currents()
    first = neuron(currents)
    assert first.any()
    assert torch.equal(neuron(currents), first)
    neuron(currents[:, :2])  # another batch size
    assert torch.equal(neuron(currents), first)
