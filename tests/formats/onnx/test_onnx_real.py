import numpy as np
import pytest
import torch
from onnx_networks import ENGINES, answers, exported_answers, num_different
from random_networks import RandomNetwork

from lbq.errors import LoweringError
from lbq.formats.onnx.real import check_exact
from lbq.graph.graph import GraphBuilder
from lbq.graph.operators import Readout, Shortcut
from lbq.lowering.lower import lower
from lbq.lowering.neuron_thresholds import as_level_neuron


def one_neuron(neuron, *, timesteps, channels):
    """Return a network of one neuron that reads what enters."""
    node, _ = as_level_neuron(neuron, path="neuron", dtype=torch.float32)
    net = GraphBuilder(timesteps=timesteps, input_shape=(channels, 5, 3), takes_frames=True)
    net.add("current", Shortcut(torch.ones(1), max_input=None), "input")
    net.add("neuron", node, "current")
    net.add("sum", Shortcut(torch.ones(1), max_input=node.max_level), "neuron")
    net.add("readout", Readout("none"), "sum")
    return net.finish()


def test_every_neuron_unrolls_to_its_own_levels(build_neuron, currents):
    net = one_neuron(build_neuron(), timesteps=len(currents), channels=currents.shape[2])
    expected = answers(net, currents)
    assert len(np.unique(expected["neuron"])) > 1
    got = exported_answers(net, currents, engine="onnxruntime")
    if build_neuron().__class__.__name__ == "LMHT":  # its currents are sums, in an order of torch's
        assert (got["neuron"] != expected["neuron"]).mean() < 1e-3
    else:
        assert not num_different(got, expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_network_of_real_numbers_keeps_its_levels(seed):
    model = RandomNetwork(seed, for_integers=False)
    inputs = model.inputs().float() / 64
    net = lower(model, inputs)
    expected = answers(net, inputs)
    for engine in ENGINES:
        got = exported_answers(net, inputs, engine=engine)
        flipped = sum(num_different(got, expected | {"logits": got["logits"]}).values())
        assert flipped <= 1e-3 * sum(levels.size for levels in expected.values())
        if not flipped:
            np.testing.assert_allclose(got["logits"], expected["logits"], rtol=1e-4, atol=1e-4)


def test_integers_beyond_float32_are_refused():
    check_exact(-(2**24) + 1, 2**24 - 1)
    with pytest.raises(LoweringError, match="exact only below"):
        check_exact(0, 2**24)
