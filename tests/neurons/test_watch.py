import pytest
import torch
from torch import nn

import lbq
from lbq.errors import NonFiniteError
from lbq.neurons import named_neurons, neuron_parameters


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), lbq.BurstLIF(step=0.3), nn.Linear(8, 4), lbq.BurstLIF())


def test_every_level_of_every_layer_and_timestep_is_shown(currents):
    model, seen = network(), {}
    inputs = torch.randn(2, 6, 5)
    with lbq.watch_levels(model, lambda layer, t, level: seen.update({(layer, t): level.clone()})):
        bursts = model(inputs)
    assert set(seen) == {("1", 0), ("1", 1), ("3", 0), ("3", 1)}
    assert seen["1", 0].shape == (6, 8)
    assert seen["3", 1].dtype == torch.uint8
    step = model[3].step().detach()
    for t in range(2):
        assert torch.equal(step * seen["3", t], bursts[t])


def test_nothing_stays_behind():
    model, seen = network(), []
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with lbq.watch_levels(model, lambda *shown: seen.append(shown)):
        model(torch.randn(2, 6, 5))
    count = len(seen)
    model(torch.randn(2, 6, 5))
    assert len(seen) == count
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}
    assert not any(neuron.emit._forward_hooks for _, neuron in named_neurons(model))


def test_a_watch_that_raises_is_removed_too():
    model = network()

    def refuse(layer, t, level):
        raise KeyError(layer)

    with pytest.raises(KeyError), lbq.watch_levels(model, refuse):
        model(torch.randn(2, 6, 5))
    model(torch.randn(2, 6, 5))


def test_streams_are_checked_too():
    neuron = lbq.BurstLIF()
    with pytest.raises(NonFiniteError), lbq.check_currents_finite(neuron):
        neuron.stream(torch.full((1, 2, 3), float("nan")), None)


def test_neuron_parameters_are_those_of_the_neurons_each_once():
    tail = lbq.ReLSGET()
    model = nn.Sequential(
        nn.Linear(4, 4), lbq.BurstLIF(surrogate=tail), lbq.BurstLIF(surrogate=tail)
    )
    found = neuron_parameters(model)
    assert len(found) == 3  # two steps, one shared tail
    assert {id(p) for p in found}.isdisjoint(id(p) for p in model[0].parameters())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_current_names_its_layer(bad):
    model = network()
    with torch.no_grad():
        model[2].weight[0, 0] = bad
    inputs = torch.full((2, 6, 5), 3.0)
    message = r"^3 \(BurstLIF\) received \d+ non-finite of 48 currents"
    with pytest.raises(NonFiniteError, match=message), lbq.check_currents_finite(model):
        model(inputs)
    model(inputs)  # silent again outside the block


def test_recorded_levels_are_those_that_a_watch_sees():
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=1 / 16).eval()
    seen = {}
    batches = [torch.randn(2, 3, 8, 8), torch.randn(5, 3, 8, 8)]
    with lbq.record_levels(model) as levels:
        for images in batches:
            model(images).sum().backward()
    for call, images in enumerate(batches):
        with lbq.watch_levels(model, lambda layer, t, level: seen.update({(layer, t): level})):
            model(images)
        assert {(layer, t) for layer in levels for t in range(2)} == seen.keys()
        for (layer, t), level in seen.items():
            assert torch.equal(levels[layer][call][t], level)
            assert levels[layer][call].dtype == torch.uint8


def test_nothing_is_recorded_after_the_block_or_without_a_call():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), lbq.BurstLIF())
    with lbq.record_levels(model) as levels:
        pass
    model(torch.ones(1, 1, 2))
    assert levels == {"1": []}
