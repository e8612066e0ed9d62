import nir
import numpy as np
import pytest
import torch
from nir_reference import Literal

from lbq.errors import FormatError, LoweringError
from lbq.formats.nir_neuron import neuron_graph, read_neuron
from lbq.graph.operators import RealNeuron

CALM = {"decay": torch.tensor([0.5]).double(), "reset_amount": torch.tensor([0.5]).double()}


def neuron(**changes):
    thresholds = torch.tensor([[0.5], [1.0], [1.5]], dtype=torch.float64)
    return RealNeuron(thresholds, **(CALM | {"reset": "event"} | changes))


def graph_of(node, *, timesteps=4):
    return neuron_graph(nir, node, shape=(3, 2, 2), timesteps=timesteps, path="layer.neuron")


@pytest.mark.parametrize("reset", ["event", "level", "none"])
@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0])
def test_thresholds_are_reached_where_they_are_met_exactly(reset, decay):
    """All numbers are small binary fractions: ties are common and nothing rounds."""
    node = neuron(reset=reset, decay=torch.tensor([decay]).double())
    literal = Literal(graph_of(node))
    currents = torch.randint(-4, 8, (4, 50, 3, 2, 2), generator=torch.manual_seed(0)).double() / 4
    for current, level in zip(currents, node(currents), strict=True):
        assert np.array_equal(literal.step(current.numpy())["output"], level.numpy())


def test_a_neuron_that_remembers_nothing_is_its_thresholds():
    for node, timesteps in ((neuron(), 1), (neuron(decay=torch.zeros(1).double()), 4)):
        kinds = {
            type(inner).__name__ for inner in graph_of(node, timesteps=timesteps).nodes.values()
        }
        assert kinds == {"Input", "Threshold", "Output"}


def test_an_integrator_without_leak_has_its_own_node():
    nodes = graph_of(neuron(decay=torch.ones(1).double())).nodes
    assert isinstance(nodes["membrane"], nir.I)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_signed": True}, "negative levels"),
        ({"per_threshold_state": True}, "its own membrane"),
        ({"mixture": torch.eye(4).double()}, "mixes timesteps"),
        ({"reset": "zero"}, "to zero"),
        ({"decay": torch.tensor([1.25]).double()}, "not in 0..1"),
    ],
)
def test_what_nir_cannot_say_is_refused_by_name(changes, why):
    with pytest.raises(LoweringError, match=rf"layer\.neuron .*{why}"):
        graph_of(neuron(**changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("after", [False, True])
def test_every_number_comes_back_hinted_or_not(dtype, after):
    thresholds = (
        torch.tensor([[0.3]]) if after else torch.tensor([[0.3, 0.4, 0.5], [0.6, 0.8, 1.1]])
    )
    reset_amount = torch.tensor([0.3]) if after else torch.tensor([0.3, 0.4, 0.5])
    node = RealNeuron(
        thresholds,
        decay=torch.tensor([0.7]),
        reset_amount=reset_amount,
        reset="event",
        resets_after_decay=after,
    ).with_tensors(lambda tensor: tensor.to(dtype))
    graph = graph_of(node)
    again = read_neuron(nir, graph, path="x")
    for name in ("thresholds", "decay", "reset_amount"):
        assert torch.equal(getattr(again, name), getattr(node, name)), name
    assert (again.reset, again.resets_after_decay) == (node.reset, after)
    graph.metadata.clear()
    guessed = read_neuron(nir, graph, path="x")
    torch.testing.assert_close(guessed.decay, node.decay)
    assert torch.equal(guessed.thresholds, node.thresholds)
    assert not guessed.resets_after_decay
    torch.testing.assert_close(
        guessed.reset_amount * guessed.decay, reset_amount.to(dtype) * (1 if after else node.decay)
    )


def test_hints_that_the_nodes_contradict_do_not_count():
    graph = graph_of(neuron())
    graph.metadata.update(decay=np.array([0.9]), reset_amount=np.array([7.0]))
    again = read_neuron(nir, graph, path="x")
    assert (again.decay.item(), again.reset_amount.item()) == (0.5, 0.5)


def varied(values):
    values = values.copy()
    values[0, 0, 0] += 1
    return values


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda g: setattr(g.nodes["membrane"], "v_leak", np.ones((3, 2, 2))), "leaking to zero"),
        (lambda g: setattr(g.nodes["membrane"], "tau", varied(g.nodes["membrane"].tau)), "one tau"),
        (lambda g: setattr(g.nodes["membrane"], "r", g.nodes["membrane"].r * 2), "r = tau"),
        (
            lambda g: setattr(
                g.nodes["threshold_1"], "threshold", varied(g.nodes["threshold_1"].threshold)
            ),
            "differs between positions",
        ),
        (lambda g: g.edges.append(("threshold_2", "reset")), "first threshold"),
        (lambda g: g.edges.append(("membrane", "output")), "not one of lbq's neurons"),
        (lambda g: g.nodes.update(more=nir.Input({"input": np.array([3])})), "2 Input nodes"),
    ],
)
def test_other_sub_graphs_are_refused(change, why):
    graph = graph_of(neuron())
    change(graph)
    with pytest.raises(FormatError, match=why):
        read_neuron(nir, graph, path="layer.neuron")
