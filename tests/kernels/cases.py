"""Random arguments for the compiled kernels, and checks against the reference."""

import random

import torch

from lbq.kernels import ScanOptions, burst_scan, burst_scan_reference

SURROGATES = [
    *((1.0, 0.0, True), (0.5, 0.5, True)),
    *((0.5, 0.5, False), (0.0, 0.0, False), (1.0, 0.0, False)),
]
"""Start of the plateau, how far it reaches beyond the largest level, and whether it has tails."""


def draw_options(rng, n):
    """Random options of levels up to ``n``, and whether the surrogate has a tail."""
    lo, margin, has_tail = rng.choice(SURROGATES)
    options = ScanOptions(
        max_level=n,
        lo=lo,
        hi=n + margin,
        reset_mode=rng.choice(["event", "level", "none"]),
        detach_reset=rng.random() < 0.25,
        detach_carry=rng.random() < 0.25,
    )
    return options, has_tail


def draw_case(seed, device="cpu"):
    """Random arguments in float32, steps per layer or per channel, odd sizes."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    timesteps, n = rng.choice([1, 2, 4, 10, 16]), rng.choice([1, 2, 5, 10, 20, 255])
    options, has_tail = draw_options(rng, n)
    shape = rng.choice([(3, 5), (2, 7, 3, 3), (1, 16, 5, 1), (2, 33, 2, 2), (1, 1, 70, 70), (0, 4)])
    gamma = 10 ** rng.uniform(-4, 4)

    def normal(*size):
        return torch.randn(*size, generator=generator).to(device)

    def uniform(*size):
        return torch.rand(*size, generator=generator).to(device)

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


def check_against_the_reference(seed, scan=burst_scan, device="cpu"):
    """Levels bit for bit; gradients to 1e-5 of what was summed up for them."""
    inputs, options, weights = draw_case(seed, device)
    out, grads = run(scan, inputs, options, weights)
    expected, terms = run(burst_scan_reference, spread(inputs), options, weights)
    assert torch.equal(out.levels, expected.levels), seed
    assert torch.equal(out.bursts, expected.bursts), seed
    assert torch.equal(out.carry, expected.carry), seed
    check_gradients(grads, terms, options, weights)


def check_gradients(grads, terms, options, weights):
    for name, term in terms.items():
        error = (grads[name] - term.sum_to_size(grads[name].shape)).abs()
        limit = 1e-5 * term.abs().sum_to_size(grads[name].shape)
        if name == "step":  # level - ratio cancels: its rounding is that of numbers up to N
            rounding = 3e-7 * options.max_level * weights[0].abs().sum(0)
            limit = limit + rounding.sum_to_size(limit.shape)
        if name in ("currents", "carry"):  # no sum: relative to the largest
            limit = 1e-5 * term.abs().max() if term.numel() else limit
        assert (error <= limit).all(), (name, options)


def check_against_float64(seeds, scan=burst_scan, device="cpu"):
    """Gradients to the same measure against a reference in float64, where it sees the same levels.

    At a threshold it may see another one; then the gradients are those of another path.
    """
    seeds, compared = list(seeds), 0
    for seed in seeds:
        inputs, options, weights = draw_case(seed, device)
        exact = {k: None if v is None else v.double() for k, v in spread(inputs).items()}
        out, grads = run(scan, inputs, options, weights)
        expected, terms = run(burst_scan_reference, exact, options, [w.double() for w in weights])
        if torch.equal(out.levels, expected.levels):
            check_gradients(grads, terms, options, weights)
            compared += 1
    assert compared > 0.75 * len(seeds)


EDGES = ((1.0, 5.0, 5), (0.0, 5.0, 5), (0.5, 5.5, 5), (1.0, 1.0, 1), (1.0, 20.0, 20))
"""Plateaus as lo, hi and max_level."""


def check_plateau_edges(scan=burst_scan, *, keep="membranes", dtype=torch.float32, device="cpu"):
    """The slope is 1 on the closed plateau and the tail's outside, down to one ulp (Eq. 11)."""
    tail, infinity = 0.1, torch.tensor(float("inf"), dtype=dtype)
    for lo, hi, n in EDGES:
        edges = torch.tensor([0.0, lo, hi, float(n)], dtype=dtype)
        ratio = torch.cat([edges.nextafter(-infinity), edges, edges.nextafter(infinity)])
        ratio = ratio.repeat(3).to(device)  # 36 values: whole vectors, and some that fill none
        for gamma in (1.0, 4.0):  # the division is exact
            currents = (gamma * ratio).reshape(1, 1, -1).requires_grad_()
            step = torch.tensor([gamma], dtype=dtype, device=device)
            options = ScanOptions(max_level=n, lo=lo, hi=hi, keep=keep)
            out = scan(currents, step, tail=tail, decay=0.5, reset=1.0, options=options)
            (slope,) = torch.autograd.grad(out.bursts.sum(), currents)
            distance = ratio - ratio.clamp(lo, hi)
            expected = torch.where(distance == 0, 1.0, tail * (-distance.abs()).exp())
            on_plateau = distance == 0
            assert (slope.flatten()[on_plateau] == 1).all(), (lo, hi, n)
            assert ((slope.flatten() - expected).abs() <= 1e-3).all(), (lo, hi, n)


def check_far_ratios(scan, dtype, device="cpu", steps=(1.0,)):
    """Ratios far from the plateau give finite bursts and gradients."""
    options = ScanOptions(max_level=5, lo=1.0, hi=5.0)
    coefficient_dtype = torch.promote_types(dtype, torch.float32)
    ratios = torch.tensor([-1e4, -1.0, 0.5, 3.0, 1e4] * 5, dtype=coefficient_dtype)
    for gamma in steps:
        values = {"step": gamma, "tail": 0.5, "decay": 0.5, "reset": 1.0}
        inputs = {
            "currents": (gamma * ratios).to(device, dtype).expand(4, 2, 25),
            **{k: torch.tensor([v], dtype=coefficient_dtype).to(device) for k, v in values.items()},
            "carry": None,
        }
        ones = torch.ones(4, 2, 25, dtype=dtype, device=device)
        out, grads = run(scan, inputs, options, (ones, ones[0]))
        assert out.bursts.isfinite().all()
        for name, grad in grads.items():
            assert grad.isfinite().all(), name


def check_threads(run):
    """``run()`` returns the same tensors on one, two and three threads."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(run())
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def check_channels_last(scan, device="cpu"):
    """Channels last runs without a copy, forward and backward."""
    merged = torch.randn(6, 4, 5, 3).to(device).contiguous(memory_format=torch.channels_last)
    currents = merged.unflatten(0, (2, 3)).requires_grad_()
    for step in (torch.tensor([0.4]), 0.4 * torch.ones(4, 1, 1)):
        out = scan(currents, step.to(device).requires_grad_())
        assert out.bursts.stride() == out.levels.stride() == currents.stride()
        (grad,) = torch.autograd.grad(out.bursts.square().sum(), currents)
        assert grad.stride() == currents.stride()


def saved_bytes(run):
    """Call a function; return its result and the bytes saved for the backward."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()
    return out, sum(sizes)
