"""The native kernels of the baselines against their loops in plain torch."""

import random

import pytest
import torch
from kernels.baseline_cases import NEURONS, check_gradients, draw_case, run, spread
from kernels.cases import check_threads, saved_bytes
from kernels.isas import require_native
from torch import nn
from torch._inductor.compile_fx import compile_fx
from torch.library import opcheck

from lbq.errors import ImplementationError, ShapeError
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


def sequence(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NEURONS)
def test_what_is_not_finite_comes_out_as_in_the_loop(isa, name, dtype):
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.7] * 5, dtype=dtype)
    currents, neuron, found = bad.expand(2, 2, 20).contiguous(), NEURONS[name](), []
    for implementation in ("native", "plain"):
        with force_implementation(implementation), torch.no_grad():
            found.append(neuron.scan(currents, None))
    (bursts, levels, carry), expected = found
    assert bursts[0].isnan().equal(currents[0].isnan())
    torch.testing.assert_close(bursts, expected[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(carry, expected[2], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(levels[~bursts.isnan()], expected[1][~bursts.isnan()])


@pytest.mark.parametrize("name", NEURONS)
def test_the_number_of_threads_changes_no_bit(isa, name):
    neuron, leaf = NEURONS[name](), sequence(3, 8, 6, 41, 43).requires_grad_()
    neuron.decay.value.requires_grad_()
    leaves = [leaf, neuron.decay.value, *neuron.parameters()]

    def run():
        bursts, levels, carry = neuron.scan(leaf, None)
        return bursts, levels, carry, *torch.autograd.grad(bursts.square().sum(), leaves)

    check_threads(run)


@pytest.mark.parametrize("name", NEURONS)
def test_channels_last_runs_without_a_copy(name):
    merged = sequence(6, 4, 5, 3).contiguous(memory_format=torch.channels_last)
    currents, neuron = merged.unflatten(0, (2, 3)).requires_grad_(), NEURONS[name]()
    bursts, levels, carry = neuron.scan(currents, None)
    assert bursts.stride() == levels.stride() == currents.stride()
    assert carry.stride()[-4:] == currents.stride()[-4:]
    (grad,) = torch.autograd.grad(bursts.square().sum(), currents)
    assert grad.stride() == currents.stride()


@pytest.mark.parametrize("name", NEURONS)
def test_only_the_currents_are_saved_for_the_backward(name):
    currents, neuron = sequence(4, 2, 8, 16, 16).requires_grad_(), NEURONS[name]()
    bursts, size = saved_bytes(lambda: neuron(currents))
    assert type(bursts.grad_fn).__name__ == "NativeBaselineScanBackward"
    assert size / currents.numel() < 4.02


@pytest.mark.parametrize("name", NEURONS)
def test_what_the_kernels_do_not_take_runs_as_a_loop(name):
    neuron, currents = NEURONS[name](), sequence(2, 3, 4, 5, 5)
    for refused in (currents.double(), currents.half(), currents[..., ::2], currents[:, :0]):
        assert neuron(refused).shape == refused.shape
        with force_implementation("native"), pytest.raises(ImplementationError, match=name):
            neuron(refused)
    with force_implementation("triton"), pytest.raises(ImplementationError, match="a GPU"):
        neuron(currents.double())


def test_a_threshold_with_a_gradient_runs_as_a_loop():
    neuron = BinaryLIF()
    neuron.threshold.requires_grad_()
    neuron(sequence(2, 3, 4)).sum().backward()
    assert neuron.threshold.grad is not None


@pytest.mark.parametrize("name", NEURONS)
def test_a_carry_of_another_shape_is_refused(name):
    with pytest.raises(ShapeError, match=r"the carry has shape \(3, 5\)"):
        NEURONS[name]().stream(torch.zeros(1, 3, 4), torch.zeros(3, 5))


@pytest.mark.parametrize("name", NEURONS)
def test_coefficients_in_half_precision_are_used_in_float32(name):
    neuron, currents, found = NEURONS[name](decay=0.3).bfloat16(), sequence(4, 2, 9).bfloat16(), []
    for implementation in ("native", "plain"):
        with force_implementation(implementation):
            found.append(neuron.scan(currents, None))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", NEURONS)
def test_a_compiled_neuron_calls_the_native_kernels_and_gets_the_same_bits(name):
    neuron, graphs = NEURONS[name](), []

    def answers(run, batch):
        leaf = sequence(2, batch, 4).requires_grad_()
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
    assert all("baseline_forward" in graph for graph in graphs)


def test_torchs_own_checks_of_registered_operators_pass():
    currents, one = torch.randn(2, 3, 4), torch.tensor([1.0])
    outputs = torch.empty(2, 3, 4), torch.empty(2, 3, 4, dtype=torch.uint8), torch.empty(3, 4)
    opcheck(
        torch.ops.lbq.baseline_forward.default,
        (currents, one, one, one, one, None, None, 0, 0, 1, 0, *outputs),
    )
    gradients = torch.empty(2, 3, 4), None, torch.empty(1), torch.empty(3), None
    options = 0, 0, 1, 0, 0.0, 0.0, 2.0
    opcheck(
        torch.ops.lbq.baseline_backward.default,
        (currents, None, currents, one, None, one, one, one, None, None, *options, *gradients),
    )
