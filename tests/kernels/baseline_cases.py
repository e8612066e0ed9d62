"""Neurons of other papers with random settings, and their gradients, for all implementations."""

import copy
import random

import torch
from torch import nn

from lbq.kernels import force_implementation
from lbq.neurons import (
    BinaryLIF,
    BoxET,
    ClipBox,
    FixedStep,
    HardResetLIF,
    IntegerLIF,
    MultiLevelLIF,
    OriginalTernaryLIF,
    ReLSGET,
    TailedBox,
    TernaryLIF,
)
from lbq.neurons.step import NeuronStep

NEURONS = {
    "binary": BinaryLIF,
    "hard reset": HardResetLIF,
    "ternary": TernaryLIF,
    "original ternary": OriginalTernaryLIF,
    "integer": IntegerLIF,
    "multi-level": MultiLevelLIF,
}


def draw_neuron(name, rng, channels):
    """A neuron with random settings; its coefficients have gradients where the kernels give one."""
    decay = rng.choice([0.0, 0.25, 0.5, rng.random()])
    steps = rng.choice([0.5, 1.0, rng.uniform(0.2, 2)]), rng.choice([None, channels])
    step = FixedStep(steps[0], channels=steps[1])
    step.value.mul_(1 + 0.5 * torch.rand(step.value.shape) * rng.choice([0, 1]))
    if name == "binary":
        threshold, reset = rng.choice([1.0, rng.uniform(0.2, 2)]), rng.choice([1.0, rng.random()])
        neuron = BinaryLIF(
            threshold=threshold, decay=decay, reset=reset, sharpness=rng.uniform(1, 4)
        )
    elif name == "hard reset":
        neuron = HardResetLIF(threshold=rng.choice([2.0, rng.uniform(0.2, 2)]), decay=decay)
    elif name == "ternary":
        surrogate = rng.choice([BoxET, ClipBox, ReLSGET, TailedBox])()
        mode, reset = rng.choice(["event", "level", "none"]), rng.choice([1.0, rng.random()])
        neuron = TernaryLIF(
            step=step, surrogate=surrogate, decay=decay, reset=reset, reset_mode=mode
        )
        neuron.reset.requires_grad_()
    elif name == "original ternary":
        neuron = OriginalTernaryLIF(step=step, decay=decay)
    elif name == "integer":
        neuron = IntegerLIF(rng.choice([1, 4, 255]), decay=decay, is_normalised=rng.random() < 0.5)
    else:
        first = rng.choice([0.6, 0.5, rng.uniform(-0.5, 1)])
        neuron = MultiLevelLIF(rng.choice([1, 3, 20]), first_threshold=first, decay=decay)
    neuron.decay.value.requires_grad_()
    if "ternary" in name:
        step.value.requires_grad_()
    return neuron


def draw_currents(neuron, rng, shape, dtype):
    """Currents in any layout that the kernels take; some lie exactly on thresholds."""
    timesteps = rng.choice([1, 2, 4, 10, 40])
    currents = torch.randn(timesteps, *shape) * rng.choice([1.0, 2.0, neuron.max_level])
    if rng.random() < 0.5:
        currents = (4 * currents).round() / 4
    layout = rng.choice(["first", "last", "repeated"])
    if layout == "last" and len(shape) == 4:
        folded = currents.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        currents = folded.unflatten(0, (timesteps, shape[0]))
    elif layout == "repeated":
        currents = currents[:1].expand(timesteps, *shape)
    return currents.to(dtype)


def draw_case(name, seed, dtype=torch.float32):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shape = rng.choice([(3, 5), (2, 7, 3, 3), (1, 16, 5, 1), (2, 33, 2, 2), (1, 2, 70, 70)])
    neuron = draw_neuron(name, rng, shape[1])
    currents = draw_currents(neuron, rng, shape, dtype)
    state = (neuron.max_level, *shape) if name == "multi-level" else shape
    carry = torch.randn(state) if rng.random() < 0.5 else None
    weights = torch.randn(currents.shape), torch.randn(state) * rng.choice([0.0, 1.0])
    return neuron, currents, carry, weights


def run(neuron, currents, carry, weights, implementation):
    """Bursts, levels, carry, and the gradients of everything that has one."""
    leaves = {"currents": currents.detach().requires_grad_()}
    if carry is not None:
        leaves["carry"] = carry.detach().requires_grad_()
    buffers = {n: b for n, b in neuron.named_buffers() if b.requires_grad}
    leaves |= buffers | dict(neuron.named_parameters())
    with force_implementation(implementation):
        out = neuron.scan(leaves["currents"], leaves.get("carry"))
    loss = (out[0].float() * weights[0]).sum() + (out[2] * weights[1]).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    zeros = {k: torch.zeros_like(v) for k, v in leaves.items()}
    return out, zeros | {k: g for k, g in zip(leaves, grads, strict=True) if g is not None}


class StepPerNeuron(NeuronStep):
    """A step for every neuron."""

    def __init__(self, value):
        super().__init__()
        self.value: torch.Tensor
        self.register_buffer("value", value)

    def for_currents(self, currents, *, max_level):
        return self.value


def spread(neuron, currents):
    """The neuron with its own coefficients for every value: their gradients are the sums' terms."""
    neuron, instant = copy.deepcopy(neuron), currents.shape[1:]

    def per_neuron(value):
        return value.detach().expand(instant).clone().requires_grad_(value.requires_grad)

    neuron.decay.value = per_neuron(neuron.decay.value)
    if isinstance(neuron, TernaryLIF):
        neuron.reset, raw_tail = per_neuron(neuron.reset), neuron.surrogate.raw_tail
        if isinstance(raw_tail, nn.Parameter):
            neuron.surrogate.raw_tail = nn.Parameter(per_neuron(raw_tail))
    if hasattr(neuron, "step"):
        neuron.step = StepPerNeuron(per_neuron(neuron.step.for_currents(currents, max_level=1)))
    return neuron


def check_gradients(grads, terms):
    """To 1e-5 of what was summed up for a coefficient, and of the largest of the others."""
    assert grads.keys() == terms.keys()
    for name, grad in grads.items():
        term = terms[name]
        if name == "step.value" and grad.dim() == 1 and grad.numel() > 1:
            term = term.transpose(0, 1).flatten(1).T  # [.., C]
        error = (grad - term.sum_to_size(grad.shape)).abs()
        limit = 1e-5 * term.abs().sum_to_size(grad.shape)
        if name in ("currents", "carry"):
            limit = 1e-5 * term.abs().max()
        if name.startswith("step"):  # level - ratio cancels
            limit = limit + 3e-7 * term.numel() / grad.numel()
        assert (error <= limit).all(), name
