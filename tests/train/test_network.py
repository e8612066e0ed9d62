from typing import get_args

import pytest
import torch
from torch import nn

from lbq import neurons
from lbq.errors import RecipeError
from lbq.train.network import ModelConfig, NeuronConfig, NeuronKind, build_network


def small(**options):
    return ModelConfig(width=1 / 32, timesteps=2, **options)


@pytest.mark.parametrize("kind", get_args(NeuronKind))
def test_every_trainable_tensor_of_every_kind_gets_a_gradient(kind):  # so no flag is needed in DDP
    torch.manual_seed(0)
    model = build_network(small(neuron=NeuronConfig(kind=kind)), num_classes=4)
    model(torch.randn(4, 3, 8, 8)).square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_a_fixed_step_is_a_buffer_and_a_learned_one_a_parameter():
    for kind, is_learned in (("v1", False), ("v2", False), ("v3", True), ("lbq", True)):
        model = build_network(small(neuron=NeuronConfig(kind=kind, step=0.25)), num_classes=4)
        steps = [name for name, _ in model.named_parameters() if name.endswith("raw_step")]
        assert bool(steps) == is_learned
        first = next(m for m in model.modules() if isinstance(m, neurons.BurstLIF))
        assert first.step().item() == pytest.approx(0.25)
        assert first.max_level == 5


def test_what_is_asked_for_is_built():
    config = small(
        name="resnet19",
        neuron=NeuronConfig(max_level=3, decay=0.25, step_per_channel=True),
        form="cifar",
        block="sew",
    )
    model = build_network(config, num_classes=7)
    neuron = model.stem_neuron
    assert isinstance(neuron, neurons.BurstLIF)
    assert neuron.max_level == 3
    assert neuron.decay().item() == 0.25
    assert neuron.step().numel() == 2  # channels of the stem at this width
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 7)


def test_the_twin_without_neurons_has_relus():
    model = build_network(small(neuron=NeuronConfig(kind="relu")), num_classes=4)
    assert sum(isinstance(m, nn.ReLU) for m in model.modules()) == 19


def test_an_unknown_name_is_refused_with_the_known_ones():
    config = small()
    object.__setattr__(config, "name", "vgg")
    with pytest.raises(RecipeError, match=r"no network 'vgg'.*resnet20"):
        build_network(config, num_classes=4)
