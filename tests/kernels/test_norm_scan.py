"""The fused norm, shortcut and neuron against the separate operations in torch."""

import random

import torch
from kernels.cases import check_threads, draw_options
from kernels.isas import require_native
from torch.nn import functional as F

from lbq.kernels import ScanOptions, burst_scan_reference
from lbq.kernels.norm_scan import MAX_TIMESTEPS, NormedBurstScan, can_run

require_native()


def channels_last(*shape, generator, dtype=torch.float32):
    folded = torch.randn(shape[0] * shape[1], *shape[2:], generator=generator).to(dtype)
    return folded.contiguous(memory_format=torch.channels_last).unflatten(0, shape[:2])


def draw_case(seed, dtype=torch.float32):
    """Random tensors by name, options, and weights of the loss."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    n = rng.choice([1, 2, 5, 20, 255])
    shape = rng.choice([1, 2, 4, 10]), rng.choice([1, 3]), rng.choice([1, 5, 16, 37]), 3, 5
    options, has_tail = draw_options(rng, n)

    def uniform(*size):
        return torch.rand(*size, generator=generator)

    is_frozen = rng.random() < 0.3
    has_weight, has_shortcut = rng.random() < 0.7, rng.random() < 0.5
    tensors = {
        "currents": rng.choice([0.0, 30.0])
        + channels_last(*shape, generator=generator, dtype=dtype),
        "shortcut": channels_last(*shape, generator=generator, dtype=dtype)
        if has_shortcut
        else None,
        "weight": 0.5 + uniform(shape[2]) if has_weight else None,
        "bias": uniform(shape[2]) - 0.5 if has_weight else None,
        "mean": uniform(shape[2]) if is_frozen else None,
        "variance": 0.5 + uniform(shape[2]) if is_frozen else None,
        "step": (0.1 + uniform(shape[2], 1, 1) if rng.random() < 0.5 else 0.1 + uniform(1))
        * rng.choice([1.0, 3 / n]),
        "tail": 0.05 + 0.9 * uniform(1) if has_tail else None,
        "decay": uniform(1),
        "reset": uniform(1),
    }
    weights = channels_last(*shape, generator=generator).contiguous()
    return tensors, options, weights


def leaves_of(tensors):
    constant = ("mean", "variance")
    return {
        name: value if value is None else value.detach().requires_grad_(name not in constant)
        for name, value in tensors.items()
    }


def exact_leaves(tensors):
    """The same in float64, channels first (for the other order, see docs/log.md)."""
    return leaves_of({k: v if v is None else v.double().contiguous() for k, v in tensors.items()})


def one_after_the_other(leaves, options, eps=1e-5):
    """Batch norm, sum and reference neuron."""
    names = ("step", "tail", "decay", "reset")
    step, tail, decay, reset = (leaves[name] for name in names)
    mean, variance = leaves["mean"], leaves["variance"]
    folded = leaves["currents"].flatten(0, 1)
    normed = F.batch_norm(
        folded, mean, variance, leaves["weight"], leaves["bias"], mean is None, 0.0, eps
    ).unflatten(0, leaves["currents"].shape[:2])
    currents = normed if leaves["shortcut"] is None else normed + leaves["shortcut"]
    return burst_scan_reference(
        currents, step, tail=tail, decay=decay, reset=reset, carry=None, options=options
    )


def fused(leaves, options, eps=1e-5, wants_levels=True):
    return NormedBurstScan.apply(*leaves.values(), options, eps, wants_levels)


def gradients(loss, leaves):
    wanted = {k: v for k, v in leaves.items() if v is not None and v.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(wanted.items(), found, strict=True)
    }


def test_levels_and_gradients_are_those_of_torch_in_float64(isa):
    flipped = levels = compared = 0
    for seed in range(150):
        tensors, options, weights = draw_case(seed)
        leaves, exact = leaves_of(tensors), exact_leaves(tensors)
        bursts, found, _, _ = fused(leaves, options)
        expected = one_after_the_other(exact, options)
        is_flipped = found != expected.levels
        flipped, levels = flipped + int(is_flipped.sum()), levels + is_flipped.numel()
        assert torch.equal(bursts, leaves["step"] * found), seed
        if is_flipped.any():
            continue
        compared += 1
        grads = gradients((bursts * weights).sum(), leaves)
        reference = gradients((expected.bursts * weights).sum(), exact)
        for name, grad in grads.items():
            scale = 1e-3 + reference[name].abs().max() + options.max_level * (name == "step")
            error = (grad - reference[name]).abs().max() / scale
            assert error < 2e-4, (name, seed, error)
    assert flipped / levels < 1e-4  # a membrane within float32's rounding of a threshold
    assert compared > 120


def test_statistics_of_the_batch_are_exact_far_from_zero(isa):
    generator = torch.Generator().manual_seed(0)
    currents = 1e3 + channels_last(4, 6, 21, 9, 7, generator=generator)
    leaves = dict.fromkeys(("shortcut", "weight", "bias", "mean", "variance"))
    one = torch.ones(1)
    leaves = {"currents": currents, **leaves, "step": one, "tail": one, "decay": one, "reset": one}
    _, _, mean, variance = fused(leaves, ScanOptions(max_level=5, lo=1.0, hi=5.0))
    exact = currents.double().transpose(0, 2).flatten(1)
    torch.testing.assert_close(mean, exact.mean(1).float(), rtol=1e-7, atol=0)
    torch.testing.assert_close(variance, exact.var(1, correction=0).float(), rtol=1e-5, atol=0)


def test_the_number_of_threads_changes_no_bit(isa):
    generator = torch.Generator().manual_seed(3)
    tensors, options, _ = draw_case(3)
    tensors |= {
        "currents": channels_last(2, 9, 24, 20, 20, generator=generator),
        "shortcut": channels_last(2, 9, 24, 20, 20, generator=generator),
        "weight": torch.rand(24, generator=generator),
        "bias": torch.rand(24, generator=generator),
        "mean": None,
        "variance": None,
        "step": torch.tensor([0.3]),
    }
    leaves = leaves_of(tensors)

    def run():
        out = fused(leaves, options)
        return *out, *gradients(out[0].square().sum(), leaves).values()

    check_threads(run)


def test_half_precision_goes_in_and_out_and_float32_stays_between(isa):
    tensors, options, weights = draw_case(11, torch.bfloat16)
    half = leaves_of(tensors)
    exact = leaves_of(
        {k: v if v is None else v.float() for k, v in tensors.items()}  # the same numbers
    )
    bursts, levels, mean, variance = fused(half, options)
    reference = fused(exact, options)
    assert bursts.dtype == torch.bfloat16
    for got, expected in zip((levels, mean, variance), reference[1:], strict=True):
        assert torch.equal(got, expected)
    assert torch.equal(bursts, reference[0].bfloat16())
    weights = weights.bfloat16()
    grads = gradients((bursts * weights).sum(), half)
    expected = gradients((reference[0] * weights.float()).sum(), exact)
    for name, grad in grads.items():
        scale = expected[name].abs().max()
        assert (grad.float() - expected[name]).abs().max() <= 1e-2 * scale, name


def test_only_currents_and_shortcut_are_saved_for_the_backward():
    tensors, options, _ = draw_case(1)
    leaves, kept = leaves_of(tensors), []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fused(leaves, options, wants_levels=False)
    size = leaves["currents"].numel()
    large = [tensor.data_ptr() for tensor in kept if tensor.numel() == size]
    inputs = [leaves[name] for name in ("currents", "shortcut") if leaves[name] is not None]
    assert sorted(large) == sorted(tensor.data_ptr() for tensor in inputs)


def test_refuses_what_the_kernels_do_not_take():
    generator = torch.Generator().manual_seed(0)
    currents, one = channels_last(2, 3, 4, 5, 5, generator=generator), torch.ones(1)
    assert can_run(currents, None, one)
    assert can_run(currents, currents, torch.ones(4, 1, 1))
    assert can_run(currents.bfloat16(), None, one)
    assert not can_run(currents.contiguous(), None, one)
    assert not can_run(currents.double(), None, one)
    assert not can_run(currents, currents[:, :1], one)
    assert not can_run(currents, None, torch.ones(4, 5, 5))
    assert not can_run(currents[:, :0], None, one)
    long = channels_last(MAX_TIMESTEPS + 1, 1, 2, 2, 2, generator=generator)
    assert not can_run(long, None, one)
