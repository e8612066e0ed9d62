"""Shapes computed from a manifest, and values that no lowered network has."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from bundles import manifest_of, tiny_network
from random_networks import node_outputs

from lbq.formats import BundleError
from lbq.formats.bundle.manifest import read_manifest
from lbq.formats.bundle.validation import check_graph, check_values
from lbq.graph.graph import Node
from lbq.graph.operators import RealNeuron


@pytest.mark.parametrize("is_integer", [True, False])
def test_shapes_are_those_of_the_running_network(is_integer):
    network = tiny_network(is_integer=is_integer)
    flows = check_graph(read_manifest(manifest_of(network)[0]))
    seen = node_outputs(network, network.example(3))
    assert set(seen) == set(network.operators)
    for path, made in seen.items():
        if path != "readout":  # its time is gone
            leading = (network.timesteps, 3) if flows[path].has_time else (3,)
            assert tuple(made.shape) == (*leading, *flows[path].shape)


def test_levels_and_their_sums_are_told_from_currents():
    flows = check_graph(read_manifest(manifest_of(tiny_network())[0]))
    largest = {path: flow.max_level for path, flow in flows.items()}
    assert largest["input"] == 255
    assert largest["stem.neuron"] == 3
    assert largest["pool"] == 75
    assert largest["block.merge"] is None


@pytest.mark.parametrize("role", ["weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_float_is_found_anywhere(role, value):
    synapse = tiny_network(is_integer=False).operators["fc"]
    getattr(synapse, role).view(-1)[1] = value
    with pytest.raises(BundleError) as caught:
        check_values(Node("fc", synapse, ()))
    assert caught.value.rule == "finite"


def test_integer_thresholds_may_be_equal():
    neuron = tiny_network().operators["stem.neuron"]
    neuron = replace(neuron, thresholds=neuron.thresholds[:1].expand(3, -1))
    check_values(Node("stem.neuron", neuron, ()))


@pytest.mark.parametrize(("decay", "is_sound"), [(0, True), (1.4, True), (2.5, False)])
def test_a_real_decay_may_grow_a_little(decay, is_sound):  # LM-HT learns 0.5 .. 1.5
    one = torch.ones(1)
    neuron = RealNeuron(one[None], decay=one * decay, reset_amount=one, reset="level")
    with nullcontext() if is_sound else pytest.raises(BundleError):
        check_values(Node("neuron", neuron, ()))
