"""The engine runs what it is tested for and refuses every other network, with a message."""

import ctypes
from functools import reduce

import pytest
from bundles import tiny_network

import lbq
from lbq.deploy import native_engine
from lbq.deploy.native_engine import KINDS, EngineState, NativeEngine, NetworkDescription
from lbq.deploy.operators import Merge, Readout
from lbq.errors import ImplementationError, LBQError
from lbq.kernels import native_scan as kernels

pytestmark = pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built")

NAMES = [kind.__name__ for kind in KINDS]


def refusal(kind=None, name=None, value=None, index=None):
    """Change one number of a sound network's description and return what the engine says to it.

    ``kind``: of the first node of that kind, or of the network. ``index``: in a list.
    """
    described = NetworkDescription(tiny_network())
    struct, nodes = described.struct, described.struct.nodes
    first = {NAMES[nodes[i].kind]: nodes[i] for i in reversed(range(struct.num_nodes))}
    if name is not None:
        *path, last = name.split(".")
        owner = reduce(getattr, path, struct if kind is None else first[kind])
        if index is None:
            setattr(owner, last, value)
        else:
            getattr(owner, last)[index] = value
    library = native_engine._library()
    handle = library.lbq_engine_new(ctypes.byref(struct), None, 0)
    if handle is not None:
        library.lbq_engine_free(handle)
        return None
    return library.lbq_engine_error().decode()


def test_the_network_as_it_is_runs():
    assert refusal() is None


CHANGES = {
    "the last node": (None, "num_nodes", len(tiny_network().plan) - 1),
    "no nodes": (None, "num_nodes", 0),
    "timesteps": (None, "timesteps", 0),
    "the input has no size": (None, "input", -1, 0),
    "not the last node; the answer is written once": ("Pool", "kind", NAMES.index("Readout")),
    "which is not before it": ("Synapse", "inputs", 5, 0),
    "reads another shape": ("Synapse", "from_", 3, 1),
    "it gives": ("Synapse", "to", 1000, 2),
    "expected a sequence": ("IntegerNeuron", "has_time", 0),
    "one instant to a sequence": ("Merge", "inputs", -1, 0),
    "the kind of a node": ("Pool", "kind", 256 + 3),
    "a reset is": ("IntegerNeuron", "reset", 256),
    "levels, expected 1..255": ("IntegerNeuron", "max_level", 0),
    "the thresholds has": ("IntegerNeuron", "max_level", 100),
    "expected 0..1": ("IntegerNeuron", "shift", 64),
    "stride 0": ("Synapse", "stride", 0, 0),
    "padding of more than half": ("Pool", "padding", 3, 0),
    "groups": ("Synapse", "groups", 5),
    "levels reach": ("Shortcut", "max_input", 1),
    "weights, expected": ("Synapse", "weight.count", 7),
    "integers without data": ("Synapse", "weight.data", None),
    "the width of integers": ("Synapse", "weight.width", 8),
}


@pytest.mark.parametrize("said", CHANGES)
def test_what_does_not_fit_together_is_refused(said):
    message = refusal(*CHANGES[said])
    assert message is not None
    assert said in message


def test_a_network_with_two_readouts_is_refused_by_path():
    network = tiny_network()
    readout = network.plan[-1]
    second = network.add("second", Readout("sum"), *readout.inputs)
    network.add("both", Merge(), readout.path, second)
    with pytest.raises(LBQError, match=readout.path):
        lbq.run_network(network, network.example(), backend="native")


def test_carries_that_no_memory_holds_are_said_to_be_that():
    engine = NativeEngine(tiny_network())
    for batch in (2**40, 2**59):
        with pytest.raises(ImplementationError, match="no memory left"):
            EngineState(engine, batch)
