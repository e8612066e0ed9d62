import math
import statistics

import pytest
import torch

import lbq
from lbq.analysis.layer_stats import LayerStep, StepProfile, read_steps
from lbq.neurons import BinaryLIF, BurstLIF, FixedStep, LearnedStep, OriginalTernaryLIF


def profile(*steps):
    return StepProfile(
        layers=tuple(
            LayerStep(layer=str(i), mean=s, smallest=s, largest=s, is_learned=True)
            for i, s in enumerate(steps)
        )
    )


def test_every_layer_of_a_network_is_read_in_order():
    model = lbq.resnet20(num_classes=10, timesteps=2, width=1 / 64)
    for index, module in enumerate(model.modules()):
        if isinstance(module, BurstLIF):
            module.step.set_(torch.tensor([0.1 + index / 1000]))
    found = read_steps(model)
    neurons = {name: m for name, m in model.named_modules() if isinstance(m, BurstLIF)}
    assert [layer.layer for layer in found.layers] == list(neurons)
    assert len(found.layers) == 19
    assert list(found.means) == pytest.approx([n.step().item() for n in neurons.values()])
    assert found.is_learned


def test_steps_of_channels_are_told_by_their_spread():
    neuron = BurstLIF(step=FixedStep(channels=3))
    neuron.step.set_(torch.tensor([0.5, 1.0, 1.5]))
    (layer,) = read_steps(torch.nn.Sequential(neuron)).layers
    assert (layer.smallest, layer.mean, layer.largest) == (0.5, 1.0, 1.5)
    assert not layer.is_learned


def test_variation_is_deviation_over_mean_and_has_no_unit():
    steps = (0.036, 0.461, 0.2, 0.11)
    found = profile(*steps).variation
    assert found == pytest.approx(statistics.pstdev(steps) / statistics.mean(steps))
    assert profile(*(7 * step for step in steps)).variation == pytest.approx(found)
    assert profile(1.0, 1.0).variation == 0


def test_neurons_without_a_step_are_left_out():
    amplitude = OriginalTernaryLIF()  # its threshold stays, whatever it learns
    model = torch.nn.Sequential(BinaryLIF(), BurstLIF(step=LearnedStep(0.3)), amplitude)
    assert [layer.layer for layer in read_steps(model).layers] == ["1"]
    nothing = read_steps(torch.nn.ReLU())
    assert nothing.layers == ()
    assert math.isnan(nothing.variation)
