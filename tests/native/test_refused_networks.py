"""The engine runs what it is tested for and refuses every other network, with a message."""

import ctypes

import pytest
from bundles import tiny_network

import lbq
from lbq.deploy import native_engine
from lbq.deploy.native_engine import KINDS, EngineState, NativeEngine, NetworkDescription
from lbq.deploy.nodes import Merge, Readout
from lbq.errors import ImplementationError, LBQError
from lbq.kernels import native_scan as kernels

pytestmark = pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built")

NAMES = [kind.__name__ for kind in KINDS]


def refusal(change):
    """Change the description of a sound network and return what the engine says to it."""
    described = NetworkDescription(tiny_network())
    struct, nodes = described.struct, described.struct.nodes
    change(struct, {NAMES[nodes[i].kind]: nodes[i] for i in reversed(range(struct.num_nodes))})
    library = native_engine._library()
    handle = library.lbq_engine_new(ctypes.byref(struct), None, 0)
    if handle is not None:
        library.lbq_engine_free(handle)
        return None
    return library.lbq_engine_error().decode()


def set_to(kind, name, value):
    """Return a change of one number of the first node of a kind."""

    def change(struct, nodes):
        setattr(nodes[kind], name, value)

    return change


def set_in(kind, name, index, value):
    """Return a change of one number of a list in the first node of a kind."""

    def change(struct, nodes):
        getattr(nodes[kind], name)[index] = value

    return change


def without_readout(struct, nodes):
    struct.num_nodes -= 1


def test_the_network_as_it_is_runs():
    assert refusal(lambda struct, nodes: None) is None


CHANGES = {
    "the last node": without_readout,
    "no nodes": lambda struct, nodes: setattr(struct, "num_nodes", 0),
    "timesteps": lambda struct, nodes: setattr(struct, "timesteps", 0),
    "the input has no size": lambda struct, nodes: struct.input.__setitem__(0, -1),
    "not the last node; the answer is written once": set_to("Pool", "kind", NAMES.index("Readout")),
    "which is not before it": lambda struct, nodes: nodes["Synapse"].inputs.__setitem__(0, 5),
    "reads another shape": set_in("Synapse", "from_", 1, 3),
    "it gives": set_in("Synapse", "to", 2, 1000),
    "expected a sequence": set_to("IntegerNeuron", "has_time", 0),
    "one instant to a sequence": lambda struct, nodes: nodes["Merge"].inputs.__setitem__(0, -1),
    "the kind of a node": set_to("Pool", "kind", 256 + 3),
    "a reset is": set_to("IntegerNeuron", "reset", 256),
    "levels, expected 1..255": set_to("IntegerNeuron", "max_level", 0),
    "the thresholds has": set_to("IntegerNeuron", "max_level", 100),
    "expected 0..1": set_to("IntegerNeuron", "shift", 64),
    "stride 0": set_in("Synapse", "stride", 0, 0),
    "padding of more than half": set_in("Pool", "padding", 0, 3),
    "groups": set_to("Synapse", "groups", 5),
    "levels reach": set_to("Shortcut", "max_input", 1),
    "weights, expected": lambda struct, nodes: setattr(nodes["Synapse"].weight, "count", 7),
    "integers without data": lambda struct, nodes: setattr(nodes["Synapse"].weight, "data", None),
    "the width of integers": lambda struct, nodes: setattr(nodes["Synapse"].weight, "width", 8),
}


@pytest.mark.parametrize("said", CHANGES)
def test_what_does_not_fit_together_is_refused(said):
    message = refusal(CHANGES[said])
    assert message is not None
    assert said in message


def test_a_network_with_two_readouts_is_refused_by_path():
    network = tiny_network()
    readout = network.plan[-1]
    second = network.add("second", Readout("sum"), *readout.inputs)
    network.add("both", Merge(), readout.path, second)
    with pytest.raises(LBQError, match=readout.path):
        lbq.run(network, network.example(), backend="native")


def test_carries_that_no_memory_holds_are_said_to_be_that():
    engine = NativeEngine(tiny_network())
    for batch in (2**40, 2**59):
        with pytest.raises(ImplementationError, match="no memory left"):
            EngineState(engine, batch)
