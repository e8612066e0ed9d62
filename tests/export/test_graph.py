"""Shapes that are computed from a manifest are those that torch computes."""

import pytest
from bundles import manifest_of, tiny_network

from lbq.export.graph import check_graph
from lbq.export.manifest import read


@pytest.mark.parametrize("is_integer", [True, False])
def test_shapes_are_those_of_the_running_network(is_integer):
    network = tiny_network(is_integer=is_integer)
    flows = check_graph(read(manifest_of(network)[0]))
    for place, node in network.nodes():
        node.register_forward_hook(lambda _, args, made, path=place.path: seen.update({path: made}))
    seen = {}
    network(network.example(3))
    assert set(seen) == {place.path for place in network.plan}
    for path, made in seen.items():
        if path != "readout":  # its time is gone
            leading = (network.timesteps, 3) if flows[path].has_time else (3,)
            assert tuple(made.shape) == (*leading, *flows[path].shape)


def test_levels_and_their_sums_are_told_from_currents():
    flows = check_graph(read(manifest_of(tiny_network())[0]))
    largest = {path: flow.max_level for path, flow in flows.items()}
    assert largest["input"] == 255
    assert largest["stem.neuron"] == 3
    assert largest["pool"] == 75
    assert largest["block.merge"] is None
