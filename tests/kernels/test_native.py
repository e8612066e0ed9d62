"""The native kernels against the reference: every instruction set, layout and number of threads."""

import os
import random

import pytest
import torch

from lbq.kernels import ScanOptions, burst_scan, burst_scan_reference, native
from lbq.kernels.native import NativeBurstScan, can_run
from lbq.kernels.plain import PlainBurstScan

if native.isa() is None:
    message = "the native kernels are not built: pip install --no-build-isolation -e ."
    if os.environ.get("LBQ_REQUIRE_NATIVE"):
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)

BEST = native.isa()
ISAS = [isa for isa in ("avx512", "avx2", "neon", "scalar") if torch.ops.lbq.set_isa(isa)]
torch.ops.lbq.set_isa(BEST)
SURROGATES = [(1.0, 0.0, True), (0.5, 0.5, False), (0.0, 0.0, False), (0.5, 0.5, True)]


@pytest.fixture(params=ISAS)
def isa(request):
    assert torch.ops.lbq.set_isa(request.param)
    yield request.param
    torch.ops.lbq.set_isa(BEST)


def draw_case(seed):
    """A random point of the matrix in float32, steps per layer or per channel, odd sizes."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    timesteps, n = rng.choice([1, 2, 4, 10, 16]), rng.choice([1, 2, 5, 10, 20, 255])
    lo, margin, has_tail = rng.choice(SURROGATES)
    shape = rng.choice([(3, 5), (2, 7, 3, 3), (1, 16, 5, 1), (2, 33, 2, 2), (1, 1, 70, 70), (0, 4)])
    gamma = 10 ** rng.uniform(-4, 4)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    def uniform(*size):
        return torch.rand(*size, generator=generator)

    currents = normal(timesteps, *shape) * gamma * rng.choice([1.0, n / 2, 3.0 * n])
    layout = rng.choice(["first", "last", "repeated", "strided"])
    if layout == "last" and len(shape) == 4:
        folded = currents.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        currents = folded.unflatten(0, (timesteps, shape[0]))
    elif layout == "repeated":
        currents = currents[:1].expand(timesteps, *shape)
    elif layout == "strided":
        currents = torch.stack([currents, currents], dim=-1)[..., 0]
    per_channel = rng.random() < 0.5
    step = gamma * (
        0.5 + uniform(shape[1], *[1] * (len(shape) - 2)) if per_channel else uniform(1) + 0.5
    )
    inputs = {
        "currents": currents,
        "step": step,
        "tail": 0.05 + 0.9 * uniform(1) if has_tail else None,
        "decay": uniform(1),
        "reset": uniform(1),
        "carry": normal(*shape) * gamma if rng.random() < 0.5 else None,
    }
    options = ScanOptions(
        max_level=n,
        lo=lo,
        hi=n + margin,
        reset_mode=rng.choice(["event", "level", "none"]),
        detach_reset=rng.random() < 0.25,
        detach_carry=rng.random() < 0.25,
    )
    weights = normal(timesteps, *shape), normal(*shape) * rng.choice([0.0, 1.0])
    return inputs, options, weights


def run(scan, inputs, options, weights):
    leaves = {k: None if v is None else v.detach().requires_grad_() for k, v in inputs.items()}
    out = scan(**leaves, options=options)
    loss = (out.bursts * weights[0]).sum() + (out.carry * weights[1]).sum()
    wanted = {k: v for k, v in leaves.items() if v is not None}
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return out, {
        k: torch.zeros_like(wanted[k]) if g is None else g
        for k, g in zip(wanted, grads, strict=True)
    }


def spread(inputs):
    """Give every neuron its own coefficients, so that their gradients are the terms of the sums."""
    instant = inputs["currents"].shape[1:]
    return {
        k: v if v is None or k in ("currents", "carry") else v.expand(instant)
        for k, v in inputs.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_levels_are_torchs_bit_for_bit_and_gradients_close(isa, seed):  # 1,000 draws for each
    for draw in range(250):
        inputs, options, weights = draw_case(seed * 250 + draw)
        out, grads = run(burst_scan, inputs, options, weights)
        expected, terms = run(burst_scan_reference, spread(inputs), options, weights)
        assert torch.equal(out.levels, expected.levels), draw
        assert torch.equal(out.bursts, expected.bursts), draw
        assert torch.equal(out.carry, expected.carry), draw
        for name, term in terms.items():
            error = (grads[name] - term.sum_to_size(grads[name].shape)).abs()
            limit = 1e-5 * term.abs().sum_to_size(grads[name].shape)
            if name == "step":  # level - ratio cancels: its rounding is that of numbers up to N
                rounding = 3e-7 * options.max_level * weights[0].abs().sum(0)
                limit = limit + rounding.sum_to_size(limit.shape)
            if name in ("currents", "carry"):  # no sum: relative to the largest
                limit = 1e-5 * term.abs().max() if term.numel() else limit
            assert (error <= limit).all(), (name, draw, options)


def sequence(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def options_for(n=5):
    return ScanOptions(max_level=n, lo=1.0, hi=float(n))


def scan(currents, step, **arguments):
    arguments = {"tail": torch.tensor([0.5]), "decay": 0.5, "reset": 1.0, **arguments}
    return burst_scan(currents, step, options=options_for(), **arguments)


@pytest.mark.parametrize("channels", [1, 6])
def test_the_number_of_threads_changes_no_bit(isa, channels):
    before, found = torch.get_num_threads(), []
    step = (0.3 * torch.ones(channels, 1, 1)).requires_grad_()
    step = step if channels > 1 else torch.tensor([0.3], requires_grad=True)
    tail = torch.tensor([0.5], requires_grad=True)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaf = sequence(3, 8, 6, 41, 43).requires_grad_()
            out = scan(leaf, step, tail=tail)
            found.append(
                (*out, *torch.autograd.grad(out.bursts.square().sum(), (leaf, step, tail)))
            )
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_bf16_in_and_out_around_a_float32_membrane(isa):
    currents = sequence(4, 50, 1000).bfloat16()
    out, exact = scan(currents, torch.tensor([0.4])), scan(currents.float(), torch.tensor([0.4]))
    assert out.bursts.dtype == torch.bfloat16
    assert torch.equal(out.levels, exact.levels)
    assert torch.equal(out.carry, exact.carry)
    assert torch.equal(out.bursts, exact.bursts.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_far_ratios_give_no_nan(isa, dtype):
    leaf = torch.tensor([-1e4, -1.0, 0.5, 3.0, 1e4] * 5).to(dtype).expand(4, 2, 25)
    leaf = leaf.clone().requires_grad_()
    step = torch.tensor([1.0], requires_grad=True)
    scan(leaf, step).bursts.sum().backward()
    assert leaf.grad.isfinite().all()
    assert step.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_comes_out_as_in_plain_torch(isa, dtype):
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.7] * 5, dtype=dtype)
    currents, step = bad.expand(1, 2, 20).contiguous(), torch.tensor([0.3])
    out, one = scan(currents, step), torch.tensor([1.0])
    plain = PlainBurstScan.apply(currents, step, None, one, one, None, options_for())
    assert torch.equal(out.bursts.isnan(), currents.isnan())
    torch.testing.assert_close(out.bursts, plain[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out.levels[~currents.isnan()], plain[1][~currents.isnan()])


def test_channels_last_runs_without_a_copy():
    folded = sequence(6, 4, 5, 3).contiguous(memory_format=torch.channels_last)
    currents = folded.unflatten(0, (2, 3)).requires_grad_()
    step = torch.tensor([0.4], requires_grad=True)
    out = scan(currents, step)
    assert out.bursts.stride() == out.levels.stride() == currents.stride()
    (grad,) = torch.autograd.grad(out.bursts.square().sum(), currents)
    assert grad.stride() == currents.stride()


def test_four_bytes_per_neuron_step_wait_for_the_backward():
    currents, step = sequence(4, 2, 8, 16, 16).requires_grad_(), torch.tensor([0.4])
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scan(currents, step)
    assert sum(sizes) / currents.numel() < 4.01


def test_what_the_kernels_do_not_take_runs_on_plain_torch():
    currents, one = sequence(2, 3, 4, 5, 5), torch.tensor([1.0])
    assert can_run(currents, one, one, one, one)
    assert can_run(currents, torch.ones(4, 1, 1), one, one, one)
    per_channel = torch.ones(4, 1, 1)
    for refused in [
        (currents.double(), one, one, one, one),
        (currents.half(), one, one, one, one),
        (currents, torch.ones(3, 1, 1, 1), one, one, one),
        (currents, one, per_channel, one, one),
        (currents[..., ::2], one, one, one, one),
    ]:
        assert not can_run(*refused)


def test_both_implementations_are_used_through_the_same_door():
    currents = sequence(2, 3, 4).requires_grad_()
    functions = {
        NativeBurstScan: scan(currents, torch.tensor([0.4])),
        PlainBurstScan: scan(currents.double(), torch.tensor([0.4])),
    }
    for function, out in functions.items():
        assert type(out.bursts.grad_fn).__name__ == f"{function.__name__}Backward"
