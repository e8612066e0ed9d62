"""Networks as users write them are lowered exactly, or refused with the layer and the reason."""

from collections import defaultdict

import pytest
import torch
from random_networks import to_proven_integers
from torch import nn
from user_networks import BATCH_AXES, EXAMPLES, NETWORKS

import lbq
from lbq.errors import LoweringError
from lbq.graph.capture import capture
from lbq.lowering.lowering import Lowering
from lbq.neurons.batch_axis import find_batch_axis, tensors_in

REFUSED = {
    "layer_norm": r"LayerNorm in body\.0\.1 .*nn\.BatchNorm2d",
    "group_norm": r"GroupNorm in body\.0\.1 .*nn\.BatchNorm2d",
    "softmax_attention": "softmax in the network itself .*products of levels",
    "gelu": r"GELU in body\.0\.1 .*lbq\.BurstLIF",
    "squeeze_excite": r"Sigmoid in body\.0\.1\.gate\.2 .*lbq\.BurstLIF",
    "bilinear": r"Upsample in body\.0\.0 .*mode='nearest'",
}
REAL = {"ternary": r"body\.1 .*negative levels"}
"""Why networks that are lowered have no integer form."""


def build(name):
    """Return the network in eval mode with every number drawn, and the axis of its batch."""
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.3, 1.3)
            nn.init.normal_(module.weight, 0.6, 0.7)
            nn.init.normal_(module.bias, 0.3, 0.3)
    return model, find_batch_axis(torch.empty(EXAMPLES[name]), BATCH_AXES.get(name))


def batch_of(name, axis, size):
    shape = list(EXAMPLES[name])
    shape[axis] = size
    return shape


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - REFUSED.keys()))
def test_no_level_differs_in_float64(name):
    levels, differ = differing_levels(name, samples=50)
    assert (levels > 0, differ) == (True, 0)


def differing_levels(name, *, samples):
    """Compare a network with its lowered form in float64; return levels, and how many differ."""
    model, axis = build(name)
    model = model.double()
    inputs = torch.randn(batch_of(name, axis, samples)).double()
    captured = capture(model, inputs.narrow(axis, 0, 1), batch_axis=axis)
    lowering = Lowering(captured, inputs.narrow(axis, 0, 1), axis == 1, torch.float64)
    with torch.no_grad():
        with lbq.neurons.record_levels(model) as expected:
            answers = list(tensors_in(model(inputs)))
        found = defaultdict(list)
        answer = lbq.run_network(
            lowering.network, inputs, watch=lambda path, t, level: found[path].append(level)
        )
        lowered = list(tensors_in(answer))
    paths = {neuron: path for path, neuron in lbq.neurons.named_neurons(model)}
    calls = dict.fromkeys(paths, 0)
    total = differ = 0
    assert len(lowering.neurons) == sum(map(len, expected.values()))
    for path, place in lowering.neurons.items():
        levels = expected[paths[place.trained]][calls[place.trained]]
        calls[place.trained] += 1
        total += levels.numel()
        differ += int(
            (torch.stack(found[path]).long() != place.layout.to_node(levels).long()).sum()
        )
    for mine, answer in zip(lowered, answers, strict=True):
        torch.testing.assert_close(mine, answer, rtol=1e-9, atol=1e-9)
    return total, differ


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - REFUSED.keys() - REAL.keys()))
def test_integers_are_the_same_in_every_backend_and_close_to_the_network(name):
    model, axis = build(name)
    raw = torch.randint(0, 256, batch_of(name, axis, 8), dtype=torch.uint8)
    is_image = axis == 0 and raw.dim() == 4
    pixels = lbq.Pixels(mean=[0.4] * 3, std=[0.25] * 3) if is_image else None
    inputs = (raw / 255 - 0.4) / 0.25 if is_image else raw.float()
    lowered = lbq.lower(model, inputs, batch_axis=axis)
    integers = to_proven_integers(lowered, bits=16, pixels=pixels)
    dense = list(tensors_in(lbq.run_network(integers, raw, backend="dense")))
    for backend in ("planes", "unary"):
        others = tensors_in(lbq.run_network(integers, raw, backend=backend))
        for mine, other in zip(dense, others, strict=True):
            assert torch.equal(mine, other), backend
    with torch.no_grad():
        answers = list(tensors_in(model(inputs)))
    for mine, answer in zip(dense, answers, strict=True):
        error = (mine * integers.logit_scale - answer).abs().mean()
        assert error < 0.1 * answer.abs().mean()


@pytest.mark.parametrize("name", REAL)
def test_a_network_without_integers_says_why(name):
    model, axis = build(name)
    lowered = lbq.lower(model, torch.randn(EXAMPLES[name]), batch_axis=axis)
    with pytest.raises(LoweringError, match=REAL[name]):
        lbq.to_fixed_point(lowered, pixels=None)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_exact_integers_is_refused(name):
    model, axis = build(name)
    with pytest.raises(LoweringError, match=REFUSED[name]):
        lbq.lower(model, torch.randn(EXAMPLES[name]), batch_axis=axis)
