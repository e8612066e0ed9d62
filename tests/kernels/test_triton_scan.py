"""The GPU kernels against the reference: on a GPU, or where there is none in Triton's interpreter.

pytest tests/kernels/test_triton_scan.py                         on a machine with a GPU
TRITON_INTERPRET=1 pytest tests/kernels/test_triton_scan.py      anywhere
"""

import os
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from kernels.baseline_cases import NEURONS, check_gradients, run, spread
from kernels.baseline_cases import draw_case as draw_baseline
from kernels.cases import (
    check_against_float64,
    check_against_the_reference,
    check_channels_last,
    check_far_ratios,
    check_plateau_edges,
    draw_case,
    saved_bytes,
)
from kernels.isas import require_triton

from lbq.kernels import ScanOptions, burst_scan, force_implementation
from lbq.kernels import triton_scan as binding
from lbq.kernels.plain_scan import PlainBurstScan
from lbq.kernels.scan_interface import layout_for
from lbq.kernels.triton_scan import can_run

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"

require_triton()
if not (IS_INTERPRETED or torch.cuda.is_available()):
    pytest.skip("no GPU here: run with TRITON_INTERPRET=1", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*encountered in:RuntimeWarning"
)  # by the interpreter


def triton_scan(currents, step, **arguments):
    """``burst_scan`` on Triton, except for arguments that are empty or not dense."""
    is_taken = currents.numel() > 0 and layout_for(currents, step) is not None
    with force_implementation("triton") if is_taken else nullcontext():
        return burst_scan(currents, step, **arguments)


@pytest.mark.parametrize("seed", range(4))
def test_levels_are_torchs_bit_for_bit_and_gradients_close(seed):  # 240 draws
    for draw in range(60):
        check_against_the_reference(seed * 60 + draw, triton_scan, DEVICE)


def test_the_tiling_does_not_change_results(monkeypatch):
    monkeypatch.setattr(binding, "_LINE_VALUES", 4)
    for values in (4, 32):
        monkeypatch.setattr(binding, "_TILE_VALUES", values)
        for seed in range(1000, 1100):
            inputs, _, _ = draw_case(seed)
            if inputs["step"].numel() > 1 and len(inputs["currents"]) == 2:
                check_against_the_reference(seed, triton_scan, DEVICE)


def test_gradients_are_close_to_those_in_float64():
    check_against_float64(range(2000, 2040), triton_scan, DEVICE)


@pytest.mark.parametrize("keep", ["membranes", "currents"])
def test_slopes_change_exactly_at_the_edges_of_the_plateau(keep):
    check_plateau_edges(triton_scan, keep=keep, device=DEVICE)


def sequence(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def tensor(*values, **keywords):
    return torch.tensor(values, device=DEVICE, **keywords)


OPTIONS = ScanOptions(max_level=5, lo=1.0, hi=5.0)


def scan(currents, step, **arguments):
    arguments = {"tail": 0.5, "decay": 0.5, "reset": 1.0, **arguments}
    with force_implementation("triton"):
        return burst_scan(currents, step, options=OPTIONS, **arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_in_and_out_around_a_float32_membrane(dtype):
    currents, step = sequence(4, 5, 100).to(dtype).requires_grad_(), tensor(0.4)
    out, exact = scan(currents, step), scan(currents.float(), step)
    assert out.bursts.dtype == dtype
    assert torch.equal(out.levels, exact.levels)
    assert torch.equal(out.carry, exact.carry)
    is_cut = IS_INTERPRETED and dtype == torch.bfloat16  # the interpreter cuts where GPUs round
    ulp = 2 * torch.finfo(dtype).eps if is_cut else 0
    torch.testing.assert_close(out.bursts, exact.bursts.to(dtype), rtol=ulp, atol=0)
    weight = sequence(4, 5, 100)
    (grad,) = torch.autograd.grad((out.bursts.float() * weight).sum(), currents)
    (expected,) = torch.autograd.grad((exact.bursts * weight.to(dtype)).sum(), currents)
    torch.testing.assert_close(grad, expected, rtol=ulp, atol=ulp)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_not_finite_comes_out_as_in_plain_torch(dtype):
    bad = tensor(float("nan"), float("inf"), -float("inf"), 0.7).to(dtype)
    currents, step, one = bad.expand(1, 2, 4).contiguous(), tensor(0.3), tensor(1.0)
    leaf = currents.clone().requires_grad_()
    out = scan(leaf, step, decay=1.0)
    plain = PlainBurstScan.apply(leaf, step, tensor(0.5), one, one, None, OPTIONS)
    torch.testing.assert_close(out.bursts, plain[0], rtol=0.01, atol=0, equal_nan=True)
    torch.testing.assert_close(out.carry, plain[2], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.levels[~currents.isnan()], plain[1][~currents.isnan()])
    (grad,) = torch.autograd.grad(out.bursts.sum(), leaf)
    (expected,) = torch.autograd.grad(plain[0].sum(), leaf)
    torch.testing.assert_close(grad, expected, rtol=0.01, atol=0, equal_nan=True)


def test_a_gradient_that_comes_only_through_the_carry_arrives():
    currents, step = sequence(3, 2, 5).requires_grad_(), tensor(0.4, requires_grad=True)
    grads = torch.autograd.grad(scan(currents, step).carry.square().sum(), (currents, step))
    plain = PlainBurstScan.apply(
        currents, step, tensor(0.5), tensor(0.5), tensor(1.0), None, OPTIONS
    )
    expected = torch.autograd.grad(plain[2].square().sum(), (currents, step))
    torch.testing.assert_close(grads, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_ratios_give_no_nan(dtype):
    check_far_ratios(triton_scan, dtype, DEVICE)


def test_channels_last_runs_without_a_copy():
    check_channels_last(scan, DEVICE)


def test_four_bytes_per_neuron_and_timestep_are_saved_for_the_backward():
    currents = sequence(4, 2, 8, 16, 16).requires_grad_()
    _, size = saved_bytes(lambda: scan(currents, tensor(0.4)))
    assert size / currents.numel() < 4.01


def test_two_runs_give_the_same_bits():
    step = (0.3 * torch.ones(6, 1, 1, device=DEVICE)).requires_grad_()
    leaf, tail = sequence(3, 8, 6, 19, 7).requires_grad_(), tensor(0.5, requires_grad=True)
    first, second = (
        torch.autograd.grad(scan(leaf, step, tail=tail).bursts.square().sum(), (leaf, step, tail))
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_what_the_kernels_do_not_take_runs_on_plain_torch():
    currents, one = sequence(2, 3, 4, 5, 5), tensor(1.0)
    takes = partial(can_run, interpreted=IS_INTERPRETED)
    per_channel = torch.ones(4, 1, 1, device=DEVICE)
    for taken in [(currents, one), (currents.half(), per_channel), (currents[:1], one)]:
        assert takes(*taken, one, one, one)
    for refused in [
        (currents.double(), one, one),
        (currents[:, :0], one, one),
        (currents, torch.ones(3, 1, 1, 1, device=DEVICE), one),
        (currents, one, per_channel),
        (currents[..., ::2], one, one),
        (torch.empty(1, 1, 2**31, dtype=torch.float16, device=DEVICE), one, one),
    ]:
        assert not takes(*refused, one, one)


def test_by_default_they_run_on_gpus_only():
    currents, one = sequence(2, 3, 4).requires_grad_(), tensor(1.0)
    out = burst_scan(currents, one, tail=0.5, decay=0.5, reset=1.0, options=OPTIONS)
    assert (out.bursts.grad_fn.name() == "TritonBurstScanBackward") == (DEVICE == "cuda")
    assert scan(currents, one).bursts.grad_fn.name() == "TritonBurstScanBackward"


@pytest.mark.parametrize("name", NEURONS)
def test_the_neurons_of_other_papers_have_the_loops_bits_and_close_gradients(name):
    for seed in range(40):
        neuron, currents, carry, weights = draw_baseline(name, seed)
        if currents.numel() > 20_000:  # slow in the interpreter
            continue
        neuron, currents = neuron.to(DEVICE), currents.to(DEVICE)
        carry = None if carry is None else carry.to(DEVICE)
        weights = tuple(weight.to(DEVICE) for weight in weights)
        found, grads = run(neuron, currents, carry, weights, "triton")
        expected, terms = run(spread(neuron, currents), currents, carry, weights, "plain")
        for got, wanted in zip(found, expected, strict=True):
            assert got.dtype == wanted.dtype
            assert torch.equal(got, wanted), seed
        check_gradients(grads, terms)


@pytest.mark.parametrize("name", NEURONS)
def test_what_is_not_finite_in_other_papers_neurons_comes_out_as_in_the_loop(name):
    bad = tensor(*[float("nan"), float("inf"), -float("inf"), 0.7] * 5)
    currents, neuron, found = bad.expand(2, 2, 20).contiguous(), NEURONS[name]().to(DEVICE), []
    for implementation in ("triton", "plain"):
        with force_implementation(implementation), torch.no_grad():
            found.append(neuron.scan(currents, None))
    for got, expected in zip(found[0][::2], found[1][::2], strict=True):  # bursts and carries
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
