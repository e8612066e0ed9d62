"""The engine runs what it is tested for and refuses every other network, with a message."""

import ctypes
from dataclasses import replace

import pytest
from bundles import tiny_network

import lbq
from lbq.errors import ImplementationError, LBQError
from lbq.graph.graph import Node
from lbq.graph.operators import Merge, Readout
from lbq.kernels import native_scan as kernels
from lbq.runtime import native_engine
from lbq.runtime.native_engine import EngineState, NativeEngine, NetworkDescription

pytestmark = pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built")


def refusal(change=None):
    """Change the description of a sound network; return what the engine says to it."""
    described = NetworkDescription(tiny_network())  # owns the memory
    struct = described.struct
    if change is not None:
        change(struct)
    library = native_engine._library()
    handle = library.lbq_engine_new(ctypes.byref(struct), None, 0)
    if handle is not None:
        library.lbq_engine_free(handle)
        return None
    return library.lbq_engine_error().decode()


def field(name, value, *, kind=None, index=None):
    """Change a number of the network, or of the first node of that kind."""

    def change(struct):
        owner = struct if kind is None else node_of(struct, kind)
        if index is None:
            setattr(owner, name, value)
        else:
            getattr(owner, name)[index] = value

    return change


def setting(kind, name, value, *, index=0):
    """Change a setting of the first node of a kind."""

    def change(struct):
        node = node_of(struct, kind)
        found = next(s for s in node.settings[: node.num_settings] if s.name == name.encode())
        if isinstance(value, str):
            found.word = value.encode()
        else:
            found.numbers[index] = value

    return change


def tensor(kind, name, field, value, *, index=None):
    """Change a number of a tensor of the first node of a kind."""

    def change(struct):
        node = node_of(struct, kind)
        found = next(t for t in node.tensors[: node.num_tensors] if t.name == name.encode())
        if index is None:
            setattr(found, field, value)
        else:
            getattr(found, field)[index] = value

    return change


def node_of(struct, kind):
    nodes = (struct.nodes[i] for i in range(struct.num_nodes))
    return next(node for node in nodes if node.kind == kind.encode())


def test_the_network_as_it_is_runs():
    assert refusal() is None


CHANGES = {
    "no node reads fc": field("num_nodes", len(tiny_network().nodes) - 1),
    "no nodes": field("num_nodes", 0),
    "timesteps": field("timesteps", 0),
    "the input has no size": field("input", -1, index=0),
    "the rank is 4": field("rank", 4),
    "which is no operator": field("kind", b"os.system", kind="pool"),
    "a synapse has no kind": field("kind", b"synapse", kind="pool"),
    "a merge reads 0 inputs": field("num_inputs", 0, kind="merge"),
    "which is not before it": field("inputs", 5, kind="synapse", index=0),
    "takes currents": field("inputs", -1, kind="merge", index=0),
    "without time": field("inputs", 0, kind="integer_neuron", index=0),
    "its setting reset": setting("integer_neuron", "reset", "never"),
    "its setting shift": setting("integer_neuron", "shift", 64),
    "its setting stride": setting("synapse", "stride", 0),
    "more than one": setting("integer_neuron", "multiplier", 5),
    "more than half": setting("pool", "padding", 3),
    "groups": setting("synapse", "groups", 5),
    "they reach 3": setting("shortcut", "max_input", 1),
    "contradicts what it reads": setting("pool", "has_time", 0),
    "its thresholds do not fit": tensor("integer_neuron", "thresholds", "shape", 3, index=1),
    "its thresholds is missing": field("num_tensors", 0, kind="integer_neuron"),
    "integers without data": tensor("synapse", "weight", "data", None),
    "the width of integers": tensor("synapse", "weight", "width", 8),
    "integers of 4 bytes": tensor("synapse", "weight", "width", 4),
    "a number of axes is 5": tensor("synapse", "weight", "num_dims", 5),
    "the length of an axis": tensor("synapse", "weight", "shape", -1, index=0),
    "a number of integers": tensor("synapse", "weight", "shape", 2**40, index=0),
}


@pytest.mark.parametrize("said", CHANGES)
def test_what_does_not_fit_together_is_refused(said):
    message = refusal(CHANGES[said])
    assert message is not None
    assert said in message


def test_a_readout_that_another_node_reads_is_refused_by_path():
    network = tiny_network()
    readout = network.nodes[-1]
    second = Node("second", Readout("sum"), readout.inputs)
    both = Node("both", Merge(), (readout.path, second.path))
    network = replace(network, nodes=(*network.nodes, second, both))
    with pytest.raises(LBQError, match=readout.path):
        lbq.run_network(network, network.example(), backend="native")


def test_carries_that_no_memory_holds_are_said_to_be_that():
    engine = NativeEngine(tiny_network())
    for batch in (2**40, 2**59):
        with pytest.raises(ImplementationError, match="no memory left"):
            EngineState(engine, batch)
