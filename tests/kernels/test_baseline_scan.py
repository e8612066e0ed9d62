"""The neurons of other papers: their declarations in native kernels and in the plain loop."""

import random

import pytest
import torch
from kernels.baseline_cases import NEURONS, check_gradients, draw_case, run, spread
from kernels.isas import require_native
from torch import nn
from torch._inductor.compile_fx import compile_fx

from lbq.errors import ShapeError
from lbq.kernels import force_implementation
from lbq.neurons import LMHT, BinaryLIF

require_native()

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("name", NEURONS)
def test_bits_are_the_loops_and_gradients_close(isa, name):
    for seed in range(120):
        neuron, currents, carry, weights = draw_case(name, seed)
        found, grads = run(neuron, currents, carry, weights, "native")
        expected, terms = run(spread(neuron, currents), currents, carry, weights, "plain")
        for got, wanted in zip(found, expected, strict=True):
            assert got.dtype == wanted.dtype
            assert torch.equal(got, wanted), seed
        check_gradients(grads, terms)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lmht_mixes_to_the_same_bits_and_gradients(isa, dtype):
    for seed in range(60):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        neuron = LMHT(rng.choice([1, 2, 5, 20]), max_level=rng.choice([1, 2, 5]))
        nn.init.normal_(neuron.raw_mixture)
        nn.init.normal_(neuron.raw_leak)
        shape = rng.choice([(3, 5), (2, 7, 3, 3), (1, 2, 70, 70)])
        currents = torch.randn(neuron.timesteps, *shape)
        if rng.random() < 0.5 and len(shape) == 4:
            folded = currents.flatten(0, 1).contiguous(memory_format=torch.channels_last)
            currents = folded.unflatten(0, (neuron.timesteps, shape[0]))
        currents, weights = currents.to(dtype), (torch.randn(currents.shape), torch.zeros(shape))
        found, grads = run(neuron, currents, None, weights, "native")
        expected, others = run(neuron, currents, None, weights, "plain")
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), seed
        scale = 1e-5 if dtype == torch.float32 else 2**-7
        error = (grads["currents"] - others["currents"]).abs()
        assert (error <= scale * others["currents"].abs() + 1e-6).all(), seed
        for name in ("raw_leak", "raw_mixture"):  # sums with random signs
            error, size = (grads[name] - others[name]).abs(), currents[0].numel() ** 0.5
            assert (error <= 1e-5 * (others[name].abs() + size)).all(), (name, seed)


@pytest.mark.parametrize("name", NEURONS)
def test_bf16_has_the_same_bits_and_gradients_up_to_one_rounding(isa, name):
    for seed in range(20):
        neuron, currents, carry, weights = draw_case(name, seed, torch.bfloat16)
        found, grads = run(neuron, currents, carry, weights, "native")
        expected, others = run(neuron, currents, carry, weights, "plain")
        assert found[0].dtype == torch.bfloat16
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), seed
        limit = 2**-7 * others["currents"].float().abs() + 1e-5
        assert ((grads["currents"] - others["currents"]).float().abs() <= limit).all(), seed


def test_a_threshold_with_a_gradient_has_one_in_native_code():
    neuron, currents = BinaryLIF(), torch.randn(2, 3, 4)
    neuron.threshold.requires_grad_()
    weights = torch.randn(2, 3, 4), torch.randn(3, 4)
    _, grads = run(neuron, currents, None, weights, "native")
    _, others = run(neuron, currents, None, weights, "plain")
    assert grads["threshold"].abs() > 0
    torch.testing.assert_close(grads, others)


@pytest.mark.parametrize("name", NEURONS)
def test_a_carry_of_another_shape_is_refused(name):
    with pytest.raises(ShapeError, match=r"the carry has shape \(3, 5\)"):
        NEURONS[name]().stream(torch.zeros(1, 3, 4), torch.zeros(3, 5))


@pytest.mark.parametrize("name", NEURONS)
def test_coefficients_in_half_precision_are_used_in_float32(name):
    neuron, currents = NEURONS[name](decay=0.3).bfloat16(), torch.randn(4, 2, 9).bfloat16()
    found = []
    for implementation in ("native", "plain"):
        with force_implementation(implementation):
            found.append(neuron.scan(currents, None))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", NEURONS)
def test_a_compiled_neuron_calls_the_native_kernels_and_gets_the_same_bits(name):
    neuron, graphs = NEURONS[name](), []

    def answers(run, batch):
        leaf = torch.randn(2, batch, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        bursts, carry = run(leaf, None)
        (grad,) = torch.autograd.grad(bursts.square().sum() + carry.sum(), leaf)
        return bursts, carry, grad

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return compile_fx(graph, inputs)

    compiled = torch.compile(neuron.stream, fullgraph=True, backend=backend)
    for batch in (3, 5):
        for got, expected in zip(
            answers(compiled, batch), answers(neuron.stream, batch), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert all("neuron_forward" in graph for graph in graphs)
