from types import SimpleNamespace

import pytest
import torch
from random_networks import RandomNetwork

from lbq.deploy import native_engine as timing
from lbq.deploy.fixed_point import to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.native_engine import NativeEngine
from lbq.deploy.nodes import Synapse
from lbq.deploy.run import run
from lbq.kernels import native_scan as kernels

pytestmark = [
    pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built"),
]


def integer_network(seed):
    model = RandomNetwork(seed)
    inputs = model.inputs()
    return to_fixed_point(lower(model, inputs.float()), bits=8, pixels=None), inputs


def multiplied_by_torch(network, inputs):
    """Count what torch multiplies, synapse by synapse, while it runs the network."""
    counts = []

    def count(node, arguments, currents):
        counts.append(currents.numel() * node.weight[0].numel())

    hooks = [
        node.register_forward_hook(count)
        for _, node in network.nodes()
        if isinstance(node, Synapse)
    ]
    run(network, inputs, backend="dense")
    for hook in hooks:
        hook.remove()
    return sum(counts)


@pytest.mark.parametrize("seed", range(8))
def test_every_product_of_a_dense_engine_is_counted_once(seed):
    network, inputs = integer_network(seed)
    few = inputs[:, :2] if network.takes_frames else inputs[:2]
    times = timing.time_layers(network, few, rounds=1)
    assert sum(layer.products for layer in times.layers) == multiplied_by_torch(network, few)


def test_kernels_are_those_that_were_asked_for():
    network = timing.ideal_network()
    inputs = torch.ones(network.example().shape, dtype=torch.uint8)
    events = timing.time_layers(network, inputs, rounds=1, choice="events").layers[-1]
    assert (events.path, events.kernel, events.pair_density) == ("ideal", "events", 1.0)
    scalar = timing.time_layers(network, inputs, rounds=1, isa="scalar")
    assert scalar.isa == "scalar"


def test_the_ideal_layer_reaches_the_limit_and_shares_are_relative_to_it():
    network = timing.ideal_network()
    inputs = torch.ones(network.example().shape, dtype=torch.uint8)
    times = timing.time_layers(network, inputs, rounds=10, choice="dense")
    (layer,) = [layer for layer in times.layers if layer.path == "ideal"]
    assert times.share(layer) == pytest.approx(layer.products / layer.seconds / times.limit)
    assert 0.1 < times.share(layer) < 10  # the machine has neighbours


def test_the_limit_is_products_over_the_least_time(monkeypatch):
    seconds = iter([4.0, 9.0, 2.0, 5.0])

    def timed(engine, inputs):
        return [SimpleNamespace(seconds=0.001), SimpleNamespace(seconds=next(seconds))]

    monkeypatch.setattr(timing.NativeEngine, "time_steps", timed)
    side, channels = timing.IDEAL_SIDE, timing.IDEAL_CHANNELS
    products = (side * channels * 3) ** 2
    assert timing.measure_limit("scalar", rounds=3) == products / 2.0


def test_the_ideal_network_is_exact():
    network = timing.ideal_network()
    inputs = torch.ones(network.example().shape, dtype=torch.uint8)
    assert torch.equal(
        NativeEngine(network, choice="dense").run(inputs), run(network, inputs, backend="dense")
    )
