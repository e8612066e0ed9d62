"""The engine is tested in native/test/engine_test.cc; here is what reaches it from Python."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from bundles import with_operators
from random_networks import RandomNetwork, node_outputs, to_proven_integers

import lbq
from lbq.errors import ImplementationError, LoweringError, ParameterError, ShapeError, TimeError
from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.operators import IntegerNeuron, Merge, Pool, Readout, Repeat, Shortcut, Synapse
from lbq.kernels import native_scan as kernels
from lbq.lowering.fixed_point import to_fixed_point
from lbq.lowering.lower import lower
from lbq.runtime import native_engine
from lbq.runtime.native_engine import EngineState, NativeEngine, NetworkDescription
from lbq.runtime.run import run_network

pytestmark = pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built")


def integer_network(seed, bits=8):
    model = RandomNetwork(seed)
    inputs = model.inputs()
    return to_proven_integers(lower(model, inputs.float()), bits=bits), inputs


def seen_by(net, inputs, backend):
    seen = []
    logits = run_network(net, inputs, backend=backend, watch=lambda *what: seen.append(what))
    return logits, seen


@pytest.mark.parametrize("seed", range(24))
def test_it_gives_the_same_levels_and_logits_as_dense(seed):
    net, inputs = integer_network(seed, bits=(4, 8, 16)[seed % 3])
    logits, levels = seen_by(net, inputs, "native")
    expected, expected_levels = seen_by(net, inputs, "dense")
    assert torch.equal(logits, expected)
    assert [what[:2] for what in levels] == [what[:2] for what in expected_levels]
    for (*_, level), (*_, known) in zip(levels, expected_levels, strict=True):
        assert torch.equal(level, known)


@pytest.mark.parametrize("choice", native_engine.CHOICES)
def test_events_and_dense_products_give_the_same_bits(choice):
    net, inputs = integer_network(7)
    assert torch.equal(
        NativeEngine(net, choice=choice).run(inputs, threads=2),
        run_network(net, inputs, backend="dense"),
    )


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_a_stream_is_the_whole_sequence(seed):
    net, inputs = integer_network(seed)
    engine, batch = NativeEngine(net), inputs.shape[1] if net.takes_frames else len(inputs)
    carries, total = EngineState(engine, batch), 0
    for t in range(net.timesteps):
        now = inputs[t : t + 1] if net.takes_frames else inputs
        total = total + engine.run(now, carries=carries, timesteps=1)
    assert torch.equal(total, run_network(net, inputs, backend="dense"))


def test_one_engine_serves_many_threads():
    net, inputs = integer_network(3)
    engine, expected = NativeEngine(net), run_network(net, inputs, backend="dense")

    def ask(number):
        return engine.run(inputs, threads=1 + number % 2)

    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(ask, range(8)))
    assert all(torch.equal(answer, expected) for answer in answers)


def test_another_network_is_packed_again():
    net, inputs = integer_network(2)
    before = run_network(net, inputs, backend="native")
    changed = with_operators(
        net, IntegerNeuron, lambda neuron: replace(neuron, thresholds=neuron.thresholds + 1)
    )
    after = run_network(changed, inputs, backend="native")
    assert torch.equal(after, run_network(changed, inputs, backend="dense"))
    assert torch.equal(before, run_network(net, inputs, backend="native"))


def test_networks_made_in_inference_mode_run():
    with torch.inference_mode():
        net, inputs = integer_network(1)
        assert torch.equal(
            run_network(net, inputs, backend="native"), run_network(net, inputs, backend="dense")
        )


def test_every_synapse_and_neuron_is_timed():
    net, inputs = integer_network(4)
    times = NativeEngine(net).time_stages(inputs[:, :2] if net.takes_frames else inputs[:2])
    assert {path for path, _ in net.neurons()} <= {stage.path for stage in times}
    assert all(0 <= stage.pair_density <= 1 for stage in times if stage.pair_density is not None)
    assert any(stage.pair_density is not None for stage in times)


def test_an_empty_batch_has_no_answers():
    net, inputs = integer_network(1)
    none = inputs[:, :0] if net.takes_frames else inputs[:0]
    assert run_network(net, none, backend="native").shape[-2:] == (0, 5)


def test_a_network_of_real_numbers_is_refused():
    model = RandomNetwork(4)
    inputs = model.inputs().float()
    with pytest.raises(LoweringError, match="to_fixed_point"):
        run_network(lower(model, inputs), inputs, backend="native")


def test_carries_of_another_batch_are_refused():
    net, inputs = integer_network(2)
    engine = NativeEngine(net)
    with pytest.raises(ParameterError, match="EngineState"):
        engine.run(inputs, carries=EngineState(engine, 17))


def test_a_stream_ends_where_the_proof_does():
    net, inputs = integer_network(2)
    engine, batch = NativeEngine(net), inputs.shape[1] if net.takes_frames else len(inputs)
    carries = EngineState(engine, batch)
    engine.run(inputs, carries=carries)
    with pytest.raises(TimeError, match="0 are left"):
        engine.run(inputs[:1] if net.takes_frames else inputs, carries=carries, timesteps=1)


@pytest.mark.parametrize("timesteps", [0, -1])
def test_no_timestep_and_fewer_are_refused(timesteps):
    net, inputs = integer_network(2)
    engine = NativeEngine(net)
    carries = EngineState(engine, inputs.shape[1] if net.takes_frames else len(inputs))
    with pytest.raises(TimeError, match="at least one timestep"):
        engine.run(inputs[:0] if net.takes_frames else inputs, carries=carries, timesteps=timesteps)
    assert carries.timesteps_left == net.timesteps


def test_frames_must_be_as_many_as_timesteps():
    net, inputs = next(
        found for seed in range(9) if (found := integer_network(seed))[0].takes_frames
    )
    with pytest.raises(TimeError, match="at least one timestep"):
        NativeEngine(net).run(inputs[:0])
    with pytest.raises(TimeError, match="frames"):
        NativeEngine(net).run(inputs[:1], timesteps=2)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(lambda x: x[..., :-1], "this network takes"), (lambda x: x.float(), "uint8")],
    ids=["too narrow", "real numbers"],
)
def test_an_engine_refuses_what_it_cannot_read(spoil, message):
    net, inputs = integer_network(2)
    with pytest.raises(ShapeError, match=message):
        NativeEngine(net).run(spoil(inputs))


def test_an_instruction_set_that_is_not_there_is_refused():
    net, _ = integer_network(2)
    with pytest.raises(ImplementationError, match="instruction set"):
        NativeEngine(net, isa="abacus")


def test_a_missing_library_is_named_with_the_way_to_build_it(monkeypatch):
    net, inputs = integer_network(2)
    native_engine._library.cache_clear()
    monkeypatch.setattr(kernels, "load_error", lambda: "is not built")
    try:
        with pytest.raises(ImplementationError, match=r"run `pip install \."):
            NativeEngine(net).run(inputs)
    finally:
        native_engine._library.cache_clear()


def test_a_residual_network_runs():
    model = lbq.resnet20(10, width=1 / 16).eval()
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    net = to_fixed_point(lower(model, pixels.float()), pixels=None)
    assert torch.equal(
        run_network(net, pixels, backend="native"), run_network(net, pixels, backend="dense")
    )


@pytest.mark.parametrize("seed", range(4))
def test_shapes_are_those_that_torch_gives(seed):
    net, inputs = integer_network(seed)
    values = net.values()
    for path, out in node_outputs(net, inputs).items():
        leading = 2 if values[path].has_time else 1
        assert out.shape[leading:] == values[path].shape, path


def linear(inputs, outputs, *, max_input=255, **options):
    weight = torch.ones(outputs, inputs, dtype=torch.int8)
    return Synapse(weight, max_input=max_input, bits=8, **options)


def neuron(channels=1):
    thresholds, reset_amount = torch.ones(2, channels).int(), torch.ones(channels).int()
    return IntegerNeuron(
        thresholds, multiplier=1, shift=1, reset_amount=reset_amount, reset="event"
    )


SUM, FIRST = Readout("sum"), ("a", linear(4, 3), INPUT)
REFUSED = {
    "a node reads mean, a readout": [
        *(FIRST, ("mean", SUM, "a"), ("mean_2", Readout("sum"), "a")),
        *(("sum", Merge(), "mean", "mean_2"), ("end", Readout("none"), "sum")),
    ],
    "sum: it reads shapes": [
        *(FIRST, ("b", linear(4, 2), INPUT), ("sum", Merge(), "a", "b"), ("end", SUM, "sum")),
    ],
    "no node reads a, a synapse": [FIRST],
    "no node reads b, a synapse": [FIRST, ("b", linear(4, 3), INPUT), ("end", SUM, "a")],
    "end is summed over time, or not, unlike the last": [
        *(FIRST, ("end", SUM, "a"), ("all", Readout("none"), "a")),
    ],
    "end: it takes currents": [FIRST, ("n", neuron(), "a"), ("end", SUM, "n")],
    r"n: thresholds of shape \(2, 5\) for 3 channels": [
        *(FIRST, ("n", neuron(5), "a"), ("b", linear(3, 2, max_input=2), "n"), ("end", SUM, "b")),
    ],
    r"a: weights of shape \(3, 7\)": [("a", linear(7, 3), INPUT), ("end", SUM, "a")],
    "again: it takes one instant, and repeats what has time": [
        *(FIRST, ("again", Repeat(2), "a"), ("end", SUM, "again")),
    ],
    "a: has_time contradicts": [("a", linear(4, 3, has_time=False), INPUT), ("end", SUM, "a")],
    r"a: \(9,\) numbers for the channels of \(4,\)": [
        ("a", Shortcut(torch.ones(9, dtype=torch.int16), max_input=255), INPUT),
        ("end", SUM, "a"),
    ],
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_network_that_the_engine_does_not_support_is_refused(why):
    net = GraphBuilder(timesteps=2, input_shape=(4,), takes_frames=True, logit_scale=1.0)
    for path, node, *inputs in REFUSED[why]:
        net.add(path, node, *inputs)
    with pytest.raises((LoweringError, ImplementationError), match=why):
        run_network(net.finish(), torch.zeros(2, 1, 4, dtype=torch.uint8), backend="native")


def test_a_pool_that_is_larger_than_what_it_reads_does_not_run():
    net = GraphBuilder(timesteps=1, input_shape=(1, 4, 4), takes_frames=True, logit_scale=1.0)
    weight = torch.ones(1, 1, 3, 3, dtype=torch.int8)
    net.add("a", Synapse(weight, max_input=255, bits=8), INPUT)
    net.add("pool", Pool("sum", kernel=(3, 3)), "a")
    net.add("end", Readout("sum"), "pool")
    with pytest.raises(LoweringError, match=r"pool: its window is wider than \(2, 2\)"):
        NetworkDescription(net.finish())


@pytest.mark.parametrize("seed", range(8))
def test_every_product_of_a_dense_engine_is_counted_once(seed):
    network, inputs = integer_network(seed)
    few = inputs[:, :2] if network.takes_frames else inputs[:2]
    times = native_engine.time_layers(network, few, rounds=1)
    multiplied = sum(
        out.numel() * network.operators[path].weight[0].numel()
        for path, out in node_outputs(network, few).items()
        if isinstance(network.operators[path], Synapse)
    )
    assert sum(layer.products for layer in times.layers) == multiplied


def test_kernels_are_those_that_were_asked_for():
    network = native_engine.ideal_network()
    inputs = torch.ones(network.example().shape, dtype=torch.uint8)
    events = native_engine.time_layers(network, inputs, rounds=1, choice="events").layers[-1]
    assert (events.path, events.kernel, events.pair_density) == ("ideal", "events", 1.0)
    scalar = native_engine.time_layers(network, inputs, rounds=1, isa="scalar")
    assert scalar.isa == "scalar"


def test_the_ideal_layer_reaches_the_limit_and_shares_are_relative_to_it():
    network = native_engine.ideal_network()
    inputs = torch.ones(network.example().shape, dtype=torch.uint8)
    times = native_engine.time_layers(network, inputs, rounds=10, choice="dense")
    (layer,) = [layer for layer in times.layers if layer.path == "ideal"]
    assert times.share(layer) == pytest.approx(layer.products / layer.seconds / times.limit)
    assert 0.1 < times.share(layer) < 10  # the machine has neighbours


def test_the_limit_is_products_over_the_least_time(monkeypatch):
    seconds = iter([4.0, 9.0, 2.0, 5.0])

    def timed(engine, inputs):
        return [SimpleNamespace(seconds=0.001), SimpleNamespace(seconds=next(seconds))]

    monkeypatch.setattr(native_engine.NativeEngine, "time_stages", timed)
    side, channels = native_engine.IDEAL_SIDE, native_engine.IDEAL_CHANNELS
    products = (side * channels * 3) ** 2
    assert native_engine.measure_limit("scalar", rounds=3) == products / 2.0


def test_the_ideal_network_is_exact():
    network = native_engine.ideal_network()
    inputs = torch.ones(network.example().shape, dtype=torch.uint8)
    assert torch.equal(
        NativeEngine(network, choice="dense").run(inputs),
        run_network(network, inputs, backend="dense"),
    )
