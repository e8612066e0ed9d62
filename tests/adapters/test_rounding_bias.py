import pytest
import torch
from torch import nn
from wired import Wired

import lbq
from lbq.adapters.relu_to_neuron import add_to_bias, find_biases

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def small(block):
    return lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1), block=block).eval()


def currents_of(model):
    found = {}
    hooks = [
        neuron.receive.register_forward_pre_hook(
            lambda m, args, p=path: found.update({p: args[0].clone()})
        )
        for path, neuron in lbq.neurons.named_neurons(model)
    ]
    model(IMAGES)
    for hook in hooks:
        hook.remove()
    return found


def test_every_neuron_of_the_papers_network_has_a_bias_of_its_own():
    model = small("basic")
    found = find_biases(model, IMAGES)
    assert found["stem_neuron"] is model.stem[2]
    assert found["stages.1.0.neuron1"] is model.stages[1][0].synapse1[1]
    assert found["stages.1.0.neuron2"] is model.stages[1][0].synapse2[1]
    assert len({id(module) for module in found.values()}) == len(found)


@pytest.mark.parametrize("place", ["stem_neuron", "stages.1.0.neuron2"])
def test_what_is_added_to_it_arrives_at_that_neuron_and_at_none_before(place):
    model = small("basic")
    before = currents_of(model)
    add_to_bias(find_biases(model, IMAGES)[place], torch.tensor([0.25]))
    after = currents_of(model)
    torch.testing.assert_close(after[place], before[place] + 0.25)
    order = list(before)
    for earlier in order[: order.index(place)]:
        assert torch.equal(after[earlier], before[earlier])


def test_a_current_that_others_read_too_has_no_bias_to_give():
    found = find_biases(small("ms"), IMAGES)
    assert found["stages.0.0.neuron1"] is None  # the shortcut adds the same currents
    assert found["stages.0.0.neuron2"] is not None


def test_a_reader_in_a_list_is_a_reader():
    def beside(m, x):
        y = m.fc(x)
        return torch.cat([y, m.neuron(y)], dim=2)

    model = Wired(beside, fc=nn.Linear(4, 4), neuron=lbq.BurstLIF())
    assert find_biases(model, torch.zeros(1, 2, 4)) == {"neuron": None}


@pytest.mark.parametrize(("alpha", "is_found"), [(1, True), (4, False)])
def test_a_sum_that_scales_does_not_pass_a_constant_unchanged(alpha, is_found):
    def summed(m, x):
        return m.neuron(torch.add(x, m.fc(x), alpha=alpha))

    model = Wired(summed, fc=nn.Linear(4, 4), neuron=lbq.BurstLIF())
    found = find_biases(model, torch.zeros(1, 2, 4))["neuron"]
    assert (found is not None) == is_found


def test_a_synapse_that_is_called_twice_has_no_bias_to_give():
    neurons = {"a": lbq.BurstLIF(), "b": lbq.BurstLIF()}
    model = Wired(lambda m, x: m.b(m.fc(m.a(m.fc(x)))), fc=nn.Linear(4, 4), **neurons)
    assert find_biases(model, torch.zeros(1, 2, 4)) == {"a": None, "b": None}


def test_a_synapse_without_a_bias_gets_one():
    synapse = nn.Conv2d(2, 3, 1, bias=False)
    x = torch.randn(1, 2, 4, 4)
    before = synapse(x)
    add_to_bias(synapse, torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(synapse(x), before + torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
    norm = nn.BatchNorm1d(4, affine=False)
    network = nn.Sequential(nn.Flatten(0, 1), norm, nn.Unflatten(0, (1, -1)), lbq.BurstLIF())
    assert find_biases(network, torch.zeros(1, 2, 4))["3"] is None
