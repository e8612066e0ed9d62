"""Random declarations of neurons, and their gradients, for all implementations."""

import random
from dataclasses import replace

import torch

from lbq.kernels import NeuronSpec, Plateau, Window, force_implementation, neuron_scan
from lbq.kernels.neuron_spec import RESETS
from lbq.kernels.packed_neuron import WINDOWS

SHAPES = [(3, 5), (2, 7, 3, 3), (1, 16, 5, 1), (2, 33, 2, 2), (1, 2, 70, 70)]
TENSORS = ("step", "thresholds", "negative", "scale", "decay", "amount", "initial")


def draw_coefficient(rng, channels, *sizes):
    """One number or one per channel, with a gradient; some are numbers that thresholds meet."""
    value = torch.full((rng.choice([1, 1, channels]),), rng.choice([*sizes, rng.uniform(0.2, 2)]))
    if rng.random() < 0.5:
        value = value * (1 + 0.5 * torch.rand(value.shape))
    return value.requires_grad_()


def draw_thresholds(rng, channels):
    """Rising thresholds; two may coincide, and the first may be negative."""
    count = rng.choice([1, 1, 2, 3, 5, 9])
    gaps = torch.tensor([rng.choice([0.5, 1.0, rng.random(), 0.0]) for _ in range(count)])
    thresholds = gaps.cumsum(0) + rng.choice([0.0, 0.1, -0.4])
    if rng.random() < 0.3:
        thresholds = thresholds.unsqueeze(1) * (1 + 0.2 * torch.rand(channels))
    return thresholds.requires_grad_()


def draw_values(rng, count):
    if rng.random() < 0.5:
        return None
    return tuple(sorted(rng.randint(1, 3 * count) for _ in range(count)))


def draw_plateau(rng, largest):
    lo = rng.choice([-1.0, 0.0, 0.5, 1.0, rng.uniform(-1, 1)])
    tail = rng.choice([None, torch.full((1,), rng.uniform(0.1, 0.9)).requires_grad_()])
    return Plateau(lo, max(lo + 0.25, rng.choice([largest, largest + 0.5])), tail)


def draw_spec(seed, channels):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    settings = {"decay": draw_coefficient(rng, channels, 0.0, 0.25, 0.5, 1.0)}
    if rng.random() < 0.4:
        settings["step"] = draw_coefficient(rng, channels, 0.5, 1.0)
        count = settings["max_level"] = rng.choice([1, 2, 4, 15])
        settings["negative"] = rng.choice(["none", "none", "mirrored"])
        settings["detach_reset"] = rng.random() < 0.3
    else:
        settings["thresholds"] = draw_thresholds(rng, channels)
        settings["scale"] = rng.choice([1.0, draw_coefficient(rng, channels, 0.5)])
        count = len(settings["thresholds"])
        strict = tuple(rng.random() < 0.5 for _ in range(count))
        settings["is_strict"] = rng.choice([False, True, strict])
        settings["negative"] = rng.choice(["none", "none", "mirrored", None])
        if settings["negative"] is None:
            settings["negative"] = draw_thresholds(rng, channels)
            settings["negative_values"] = draw_values(rng, len(settings["negative"]))
    settings["values"] = draw_values(rng, count)
    settings["reset"] = reset = rng.choice(RESETS)
    settings["amount"] = draw_coefficient(rng, channels, 0.5, 1.0)
    settings["initial"] = rng.choice([0.0, 0.0, draw_coefficient(rng, channels, 0.5)])
    settings["after_decay"] = reset in ("event", "level") and rng.random() < 0.3
    settings["detach_carry"] = rng.random() < 0.2
    largest = NeuronSpec(**settings).largest
    if not settings["after_decay"] and (reset in ("level", "none") or largest == 1):
        settings["resets_with_gradient"] = rng.random() < 0.5
    window = Window(rng.choice(WINDOWS), rng.choice([0.5, 1.0, rng.uniform(0.3, 2)]))
    settings["surrogate"] = rng.choice([window, draw_plateau(rng, largest)])
    return NeuronSpec(**settings)


def draw_case(seed, dtype=torch.float32):
    """A declaration, currents in any layout that the kernels take, a carry, and loss weights."""
    rng = random.Random(-seed)
    shape = rng.choice(SHAPES)
    spec = draw_spec(seed, shape[1])
    timesteps = rng.choice([1, 2, 4, 10])
    currents = torch.randn(timesteps, *shape) * rng.choice([1.0, 2.0, spec.largest])
    if rng.random() < 0.5:  # on thresholds
        currents = (4 * currents).round() / 4
    layout = rng.choice(["first", "last", "repeated"])
    if layout == "last" and len(shape) == 4:
        folded = currents.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        currents = folded.unflatten(0, (timesteps, shape[0]))
    elif layout == "repeated":
        currents = currents[:1].expand(timesteps, *shape)
    carry = torch.randn(shape) if rng.random() < 0.5 else None
    weights = torch.randn(timesteps, *shape), torch.randn(shape) * rng.choice([0.0, 1.0])
    return spec, currents.to(dtype), carry, weights


def leaves_of(spec):
    """The tensors of a declaration that have a gradient."""
    tensors = {name: getattr(spec, name) for name in TENSORS}
    tensors["tail"] = getattr(spec.surrogate, "tail", None)
    return {name: t for name, t in tensors.items() if isinstance(t, torch.Tensor)}


def run(spec, currents, carry, weights, implementation):
    """Bursts, levels and carry, and the gradients of everything that has one."""
    leaves = {"currents": currents.detach().requires_grad_()}
    if carry is not None:
        leaves["carry"] = carry.detach().requires_grad_()
    with force_implementation(implementation):
        out = neuron_scan(leaves["currents"], spec, leaves.get("carry"))
    leaves |= leaves_of(spec)
    loss = (out.bursts.float() * weights[0]).sum() + (out.carry * weights[1]).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    zeros = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    return out, zeros | {k: g for k, g in zip(leaves, grads, strict=True) if g is not None}


def spread(spec, instant):
    """The declaration with coefficients of every value: their gradients are the sums' terms."""

    def per_value(name, value):
        value = value.detach()
        if name in ("thresholds", "negative"):
            value = value.reshape(len(value), 1, -1, *[1] * (len(instant) - 2))
            return value.expand(len(value), *instant).clone().requires_grad_()
        return (
            value.reshape(1, -1, *[1] * (len(instant) - 2)).expand(instant).clone().requires_grad_()
        )

    spread = {name: per_value(name, value) for name, value in leaves_of(spec).items()}
    surrogate = spec.surrogate
    if "tail" in spread:
        surrogate = replace(surrogate, tail=spread.pop("tail"))
    return replace(spec, surrogate=surrogate, **spread)


def summed_like(grad, terms, name):
    """Sum the terms over all values that share a coefficient."""
    if name not in ("thresholds", "negative"):
        grad, terms = grad.unsqueeze(0), terms.unsqueeze(0)
    channels = grad.reshape(len(grad), -1).shape[1]
    terms = terms.transpose(1, 2).flatten(2).sum(2)  # [N, C]
    summed = (terms if channels > 1 else terms.sum(1, keepdim=True)).reshape(grad.shape)
    return summed if name in ("thresholds", "negative") else summed[0]


def to_device(spec, device):
    """The declaration with its tensors on a device."""
    tensors = {name: t.detach().to(device).requires_grad_() for name, t in leaves_of(spec).items()}
    surrogate = spec.surrogate
    if "tail" in tensors:
        surrogate = replace(surrogate, tail=tensors.pop("tail"))
    return replace(spec, surrogate=surrogate, **tensors)


def check_against_plain(seed, implementation, device="cpu", most_values=10**9):
    """Levels and outputs bit for bit; gradients to 1e-5 of the terms that were summed up."""
    spec, currents, carry, weights = draw_case(seed)
    if currents.numel() > most_values:
        return
    if device != "cpu":
        spec, currents = to_device(spec, device), currents.to(device)
        carry = None if carry is None else carry.to(device)
        weights = tuple(weight.to(device) for weight in weights)
    found, grads = run(spec, currents, carry, weights, implementation)
    plain, terms = run(spread(spec, currents.shape[1:]), currents, carry, weights, "plain")
    for got, wanted in zip(found, plain, strict=True):
        assert got.dtype == wanted.dtype, seed
        assert torch.equal(got, wanted), seed
    assert grads.keys() == terms.keys(), seed
    if not are_close(spec, grads, terms):  # the loop's own rounding: judged in float64
        exact, terms = run_in_float64(spread(spec, currents.shape[1:]), currents, carry, weights)
        assert torch.equal(exact.levels, found.levels), seed
        assert are_close(spec, grads, terms), seed


def run_in_float64(spec, currents, carry, weights):
    """The plain loop in float64; outputs, and gradients as float32."""
    tensors = {k: t.detach().double().requires_grad_() for k, t in leaves_of(spec).items()}
    surrogate = spec.surrogate
    if "tail" in tensors:
        surrogate = replace(surrogate, tail=tensors.pop("tail"))
    spec = replace(spec, surrogate=surrogate, **tensors)
    carry = None if carry is None else carry.double()
    out, grads = run(spec, currents.double(), carry, weights, "plain")
    return out, {name: grad.float() for name, grad in grads.items()}


def are_close(spec, grads, terms):
    """Whether gradients agree to 1e-5 of the terms that were summed up."""
    for name, grad in grads.items():
        term = terms[name]
        if name in ("currents", "carry"):
            error, limit = (grad - term).abs(), 1e-5 * term.abs().max()
        else:
            summed, size = summed_like(grad, term, name), summed_like(grad, term.abs(), name)
            error, limit = (grad - summed).abs(), 1e-5 * size
            if name == "step":  # level - ratio cancels, and both are as large as levels
                limit = limit + 3e-7 * spec.largest * term.numel() / grad.numel()
        if not (error <= limit + 1e-6).all():
            return False
    return True
