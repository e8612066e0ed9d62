"""A network written as a manifest, and read again; the schema of its nodes."""

import inspect

import pytest
import torch
from bundles import manifest_of, tiny_network

from lbq.errors import BoundError
from lbq.formats.bundle.manifest import KINDS, read_manifest
from lbq.graph import prove
from lbq.graph.operators import OPERATORS


@pytest.mark.parametrize("is_integer", [True, False])
def test_a_manifest_says_what_the_network_is(is_integer):
    network = tiny_network(is_integer=is_integer)
    document, regions = manifest_of(network)
    found = read_manifest(document)
    assert found.is_integer == is_integer
    for name in ("timesteps", "input_shape", "takes_frames", "logit_scale", "origin"):
        assert getattr(found, name) == getattr(network, name)
    assert [(e.path, e.inputs) for e in found.nodes] == [n[::2] for n in network.nodes]
    for entry, node in zip(found.nodes, network.operators.values(), strict=True):
        assert entry.operator is type(node)
        assert all(getattr(node, key) == value for key, value in entry.settings.items())
        for role, region in entry.tensors.items():
            assert region == regions.get(f"{entry.path}.{role}")


def test_bounds_are_written_for_integers_only():
    network = tiny_network()
    found = read_manifest(manifest_of(network)[0])
    assert {e.path: e.bound for e in found.nodes if e.bound} == prove(network)
    assert not any(
        e.bound for e in read_manifest(manifest_of(tiny_network(is_integer=False))[0]).nodes
    )


def test_a_bound_that_no_integer_holds_is_refused():
    document, _ = manifest_of(tiny_network())
    document["nodes"][0]["bound"]["high"] = 2**40
    with pytest.raises(BoundError):
        read_manifest(document)


def test_the_decay_of_integers_is_not_a_tensor():
    names = tiny_network().tensors
    assert "stem.neuron.thresholds" in names
    assert "stem.neuron.decay" not in names
    assert names["fc.weight"].dtype == torch.int16


def test_every_node_has_a_kind():
    assert set(KINDS.values()) == set(OPERATORS)


def test_settings_and_tensors_are_the_arguments_of_the_class():
    for name, kind in KINDS.items():
        arguments = set(inspect.signature(kind).parameters) - {"args", "kwargs"}
        assert {*kind.settings(), *kind.tensors()} == arguments, name
