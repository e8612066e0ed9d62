"""The native kernels against the reference: every instruction set, layout and number of threads."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from kernels.cases import (
    check_against_float64,
    check_against_the_reference,
    check_channels_last,
    check_far_ratios,
    check_plateau_edges,
    check_threads,
    draw_case,
    run,
    saved_bytes,
)
from kernels.isas import require_native
from torch._inductor.compile_fx import compile_fx
from torch.library import opcheck

from lbq.kernels import ScanOptions, burst_scan, force_implementation
from lbq.kernels.native_scan import NativeBurstScan, can_run
from lbq.kernels.plain_scan import PlainBurstScan

require_native()


@pytest.mark.parametrize("seed", range(4))
def test_levels_are_torchs_bit_for_bit_and_gradients_close(isa, seed):  # 1,000 draws for each
    for draw in range(250):
        check_against_the_reference(seed * 250 + draw)


def test_gradients_are_close_to_those_in_float64(isa):
    check_against_float64(range(2000, 2400))


def sequence(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def options_for(n=5):
    return ScanOptions(max_level=n, lo=1.0, hi=float(n))


def scan(currents, step, **arguments):
    arguments = {"tail": torch.tensor([0.5]), "decay": 0.5, "reset": 1.0, **arguments}
    return burst_scan(currents, step, options=options_for(), **arguments)


@pytest.mark.parametrize("channels", [1, 6])
def test_the_number_of_threads_changes_no_bit(isa, channels):
    step = (0.3 * torch.ones(channels, 1, 1)).requires_grad_()
    step = step if channels > 1 else torch.tensor([0.3], requires_grad=True)
    tail = torch.tensor([0.5], requires_grad=True)
    leaf = sequence(3, 8, 6, 41, 43).requires_grad_()

    def run():
        out = scan(leaf, step, tail=tail)
        return *out, *torch.autograd.grad(out.bursts.square().sum(), (leaf, step, tail))

    check_threads(run)


def test_bf16_in_and_out_around_a_float32_membrane(isa):
    currents = sequence(4, 50, 1000).bfloat16()
    out, exact = scan(currents, torch.tensor([0.4])), scan(currents.float(), torch.tensor([0.4]))
    assert out.bursts.dtype == torch.bfloat16
    assert torch.equal(out.levels, exact.levels)
    assert torch.equal(out.carry, exact.carry)
    assert torch.equal(out.bursts, exact.bursts.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_comes_out_as_in_plain_torch(isa, dtype):
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.7] * 5, dtype=dtype)
    currents, step = bad.expand(1, 2, 20).contiguous(), torch.tensor([0.3])
    out, one = scan(currents, step), torch.tensor([1.0])
    plain = PlainBurstScan.apply(currents, step, None, one, one, None, options_for())
    assert torch.equal(out.bursts.isnan(), currents.isnan())
    torch.testing.assert_close(out.bursts, plain[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.levels[~currents.isnan()], plain[1][~currents.isnan()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_far_ratios_give_no_nan(isa, dtype):
    check_far_ratios(burst_scan, dtype)


def test_channels_last_runs_without_a_copy():
    check_channels_last(scan)


def test_four_bytes_per_neuron_and_timestep_are_saved_for_the_backward():
    currents = sequence(4, 2, 8, 16, 16).requires_grad_()
    _, size = saved_bytes(lambda: scan(currents, torch.tensor([0.4])))
    assert size / currents.numel() < 4.01


def test_what_the_kernels_do_not_take_runs_on_plain_torch():
    currents, one = sequence(2, 3, 4, 5, 5), torch.tensor([1.0])
    per_channel = torch.ones(4, 1, 1)
    assert can_run(currents, one, one, one, one)
    assert can_run(currents, per_channel, one, one, one)
    for refused in [
        (currents.double(), one, one),
        (currents.half(), one, one),
        (currents, torch.ones(3, 1, 1, 1), one),
        (currents, one, per_channel),
        (currents[..., ::2], one, one),
    ]:
        assert not can_run(*refused, one, one)


def test_the_dtype_chooses_between_native_and_plain():
    currents = sequence(2, 3, 4).requires_grad_()
    functions = {
        NativeBurstScan: scan(currents, torch.tensor([0.4])),
        PlainBurstScan: scan(currents.double(), torch.tensor([0.4])),
    }
    for function, out in functions.items():
        assert type(out.bursts.grad_fn).__name__ == f"{function.__name__}Backward"


@pytest.mark.parametrize("width", [128, 127])  # membranes go past the cache, or are not aligned
def test_large_layers_give_the_same_bits(isa, width):
    leaf = sequence(3, 1, 48, 128, width).requires_grad_()
    found = []
    for name in ("native", "plain"):
        with force_implementation(name):
            out = scan(leaf, torch.tensor([0.3]))
        found.append((*out, *torch.autograd.grad(out.bursts.sum(), leaf)))
    for native_one, plain_one in zip(found[0][:3], found[1][:3], strict=True):
        assert torch.equal(native_one, plain_one)
    torch.testing.assert_close(found[0][3], found[1][3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep", ["membranes", "currents"])
def test_slopes_change_exactly_at_the_edges_of_the_plateau(isa, keep):
    check_plateau_edges(keep=keep)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_currents_give_the_same_bits_as_membranes(isa, dtype):
    for seed in range(60):
        inputs, options, weights = draw_case(seed)
        inputs["currents"] = inputs["currents"].to(dtype)
        found = [
            run(burst_scan, inputs, replace(options, keep=keep), weights)
            for keep in ("membranes", "currents")
        ]
        for expected, got in zip(*(out for out, _ in found), strict=True):
            assert torch.equal(expected, got), seed
        for name, expected in found[0][1].items():
            assert torch.equal(expected, found[1][1][name]), (seed, name)


@pytest.mark.parametrize("repeats", [1, 4])
def test_currents_take_their_own_bytes(isa, repeats):
    currents = 3 * sequence(4 // repeats, 2, 8, 16, 17).bfloat16()
    currents = currents.requires_grad_().expand(4, -1, -1, -1, -1)
    options = ScanOptions(max_level=5, lo=1.0, hi=5.0, keep="currents")
    arguments = {"tail": 0.5, "decay": 0.5, "reset": 1.0, "options": options}
    out, _ = saved_bytes(partial(burst_scan, currents, torch.tensor([0.4]), **arguments))
    (kept,) = (t for t in out.bursts.grad_fn.saved_tensors if t is not None and t.numel() > 1)
    assert kept.untyped_storage().data_ptr() == currents.untyped_storage().data_ptr()
    assert kept.untyped_storage().nbytes() == 2 * currents.numel() // repeats


def test_a_compiled_network_calls_the_native_kernels_and_gets_the_same_bits():
    def answers(run, batch):
        leaf = torch.randn(2, batch, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        step = torch.tensor([0.3], requires_grad=True)
        bursts, levels, carry = run(leaf, step)
        grads = torch.autograd.grad(bursts.square().sum() + carry.sum(), (leaf, step))
        return bursts, levels, carry, *grads

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.print_readable(print_output=False))
        return compile_fx(graph, inputs)

    compiled = torch.compile(scan, fullgraph=True, backend=backend)
    for batch in (3, 5):
        for got, expected in zip(answers(compiled, batch), answers(scan, batch), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert all("burst_forward" in graph for graph in graphs)


def test_torchs_own_checks_of_registered_operators_pass():
    currents, step, decay = torch.randn(2, 3, 4), torch.tensor([0.3]), torch.tensor([0.5])
    outputs = torch.empty(2, 3, 4), torch.empty(2, 3, 4, dtype=torch.uint8)
    kept, carry = torch.empty(2, 3, 4), torch.empty(3, 4)
    opcheck(
        torch.ops.lbq.burst_forward.default,
        (currents, step, decay, decay, None, 12, 5, 0, *outputs, kept, carry),
    )
    kept.normal_()
    gradients = torch.empty(2, 3, 4), None, torch.empty(1), torch.empty(3)
    options = 12, 5, 0, 1.0, 5.0, False, False
    for saves_currents in (False, True):
        saved = kept, saves_currents
        opcheck(
            torch.ops.lbq.burst_backward.default,
            (currents, None, *saved, step, None, decay, decay, None, *options, *gradients),
        )
