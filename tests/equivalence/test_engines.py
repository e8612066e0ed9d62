import os
from pathlib import Path

import pytest
import torch
from equivalence import engines
from formats.device.test_c_source import run_c
from random_graphs import RandomGraph
from random_networks import RandomNetwork

import lbq
from lbq.neurons import BinaryLIF, BurstLIF, HardResetLIF, IntegerLIF
from lbq.pretrained import pretrained_recipe


@pytest.mark.parametrize("seed", range(8))
def test_every_engine_gives_the_same_integers(seed, tmp_path):
    model = RandomNetwork(seed)
    inputs = model.inputs()
    net = engines.integer_network(model, inputs, bits=(4, 8, 16)[seed % 3], calibrate=seed % 2)
    found = engines.answers(net, inputs, tmp_path)
    assert set(engines.disagreements(found).values()) == {0}, engines.disagreements(found)
    assert "openvino, exact" in found


@pytest.mark.parametrize("seed", range(12))
def test_every_engine_gives_the_same_integers_for_every_operator(seed, tmp_path):
    model = RandomGraph(seed)
    inputs, bits = model.inputs(), (4, 8, 16)[seed % 3]
    net = engines.integer_network(model, inputs, bits=bits, batch_axis=model.batch_axis)
    found = engines.answers(net, inputs, tmp_path)
    assert set(engines.disagreements(found).values()) == {0}, (model.names, found)


@pytest.mark.parametrize("neuron", [BurstLIF, BinaryLIF, HardResetLIF, IntegerLIF])
def test_every_engine_gives_the_same_integers_for_a_slow_leak(neuron, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16),
        neuron(decay=0.999),
        torch.nn.Linear(16, 16),
        neuron(decay=0.997),
        torch.nn.Linear(16, 3),
        lbq.MeanOverTime(),
    )
    inputs = torch.randint(0, 256, (24, 5, 6), dtype=torch.uint8)
    net = lbq.to_fixed_point(lbq.lower(model.eval(), inputs.float()), bits=4, pixels=None)
    assert all(node.shift > 8 for _, node in net.neurons())
    found = engines.answers(net, inputs, tmp_path)
    found["c"] = run_c(net, inputs, tmp_path, events=True, compiler="gcc")[0].reshape(-1)
    assert set(engines.disagreements(found).values()) == {0}, engines.disagreements(found)


@pytest.mark.skipif("LBQ_DATA" not in os.environ, reason="real images: set LBQ_DATA")
def test_the_trained_network_gives_the_same_integers_on_real_images(tmp_path):
    model, recipe = lbq.load_pretrained("pocket-cifar10"), pretrained_recipe("pocket-cifar10")
    data = Path(os.environ["LBQ_DATA"]) / "cifar10"
    pixels, images = engines.cifar10_bytes(data, 20, recipe)
    normalization = recipe.data.augment.normalization
    given = lbq.Pixels(mean=normalization.mean, std=normalization.std)
    net = lbq.to_fixed_point(lbq.lower(model, images), bits=8, pixels=given, calibration=images)
    found = engines.answers(net, pixels[:4], tmp_path)
    assert set(engines.disagreements(found).values()) == {0}, engines.disagreements(found)
