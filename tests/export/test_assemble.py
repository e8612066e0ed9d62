"""A network from manifest and payload, and names that torch has already given away."""

import json

import pytest
import torch
from bundles import tiny_network

from lbq.export import BundleError, payload
from lbq.export.assemble import assemble
from lbq.export.manifest import named_tensors, read, write


def halves(network):
    data = bytearray(payload.write(named_tensors(network)))
    regions = payload.read_table(memoryview(data))
    return json.loads(write(network, regions)), memoryview(data)


def test_both_halves_give_the_network():
    network = tiny_network()
    document, data = halves(network)
    again = assemble(read(document), data)
    assert again.plan == network.plan
    for path, tensor in named_tensors(network).items():
        assert torch.equal(named_tensors(again)[path], tensor)


@pytest.mark.parametrize("name", ["forward", "plan", "training", "fc.weight", "stem.neuron.emit"])
def test_a_name_that_is_taken_is_refused(name):
    document, data = halves(tiny_network())
    document["nodes"][-1]["path"] = name
    with pytest.raises(BundleError) as caught:
        assemble(read(document), data)
    assert caught.value.rule == "name"


def test_a_node_may_lie_inside_another():
    document, data = halves(tiny_network())
    document["nodes"][-1]["path"] = "fc.readout"
    assert assemble(read(document), data).plan[-1].path == "fc.readout"
