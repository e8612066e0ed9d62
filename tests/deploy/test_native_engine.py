"""The engine is tested in native/test/engine_test.cc; here is what reaches it from Python."""

import threading

import pytest
import torch
from random_networks import RandomNetwork, to_proven_integers

import lbq
from lbq.deploy import native_engine
from lbq.deploy.fixed_point import to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.native_engine import EngineState, NativeEngine
from lbq.deploy.run import run
from lbq.errors import ImplementationError, LoweringError, ParameterError, ShapeError, TimeError
from lbq.kernels import native_scan as kernels

pytestmark = [
    pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built"),
]


def integer_network(seed, bits=8):
    model = RandomNetwork(seed)
    inputs = model.inputs()
    return to_proven_integers(lower(model, inputs.float()), bits=bits), inputs


def seen_by(net, inputs, backend):
    seen = []
    logits = run(net, inputs, backend=backend, watch=lambda *what: seen.append(what))
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
        NativeEngine(net, choice=choice).run(inputs, threads=2), run(net, inputs, backend="dense")
    )


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_a_stream_is_the_whole_sequence(seed):
    net, inputs = integer_network(seed)
    engine, batch = NativeEngine(net), inputs.shape[1] if net.takes_frames else len(inputs)
    carries, total = EngineState(engine, batch), 0
    for t in range(net.timesteps):
        now = inputs[t : t + 1] if net.takes_frames else inputs
        total = total + engine.run(now, carries=carries, timesteps=1)
    assert torch.equal(total, run(net, inputs, backend="dense"))


def test_one_engine_serves_many_threads():
    net, inputs = integer_network(3)
    engine, expected, answers = NativeEngine(net), run(net, inputs, backend="dense"), {}

    def ask(number):
        answers[number] = engine.run(inputs, threads=1 + number % 2)

    callers = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(answers) == 8
    assert all(torch.equal(answer, expected) for answer in answers.values())


def test_numbers_that_change_are_seen():
    net, inputs = integer_network(2)
    run(net, inputs, backend="native")
    for _, neuron in net.neurons():
        neuron.thresholds += 1
    assert torch.equal(run(net, inputs, backend="native"), run(net, inputs, backend="dense"))


def test_numbers_that_are_replaced_are_seen():
    net, inputs = integer_network(2)
    for _ in range(3):
        for _, neuron in net.neurons():
            neuron.thresholds = neuron.thresholds + 1
        assert torch.equal(run(net, inputs, backend="native"), run(net, inputs, backend="dense"))


def test_every_synapse_and_neuron_is_timed():
    net, inputs = integer_network(4)
    times = NativeEngine(net).time_steps(inputs[:, :2] if net.takes_frames else inputs[:2])
    assert {path for path, _ in net.neurons()} <= {step.path for step in times}
    assert all(0 <= step.pair_density <= 1 for step in times if step.pair_density is not None)
    assert any(step.pair_density is not None for step in times)


def test_an_empty_batch_has_no_answers():
    net, inputs = integer_network(1)
    none = inputs[:, :0] if net.takes_frames else inputs[:0]
    assert run(net, none, backend="native").shape[-2:] == (0, 5)


def test_a_network_of_real_numbers_is_refused():
    model = RandomNetwork(4)
    inputs = model.inputs().float()
    with pytest.raises(LoweringError, match="to_fixed_point"):
        run(lower(model, inputs), inputs, backend="native")


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


def test_no_frames_are_refused():
    net, inputs = next(
        found for seed in range(9) if (found := integer_network(seed))[0].takes_frames
    )
    with pytest.raises(TimeError, match="at least one timestep"):
        NativeEngine(net).run(inputs[:0])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x[..., :-1], "this network takes"),
        (lambda x: x.float(), "uint8"),
    ],
    ids=["too narrow", "real numbers"],
)
def test_an_engine_refuses_what_it_cannot_read(spoil, message):
    net, inputs = integer_network(2)
    with pytest.raises(ShapeError, match=message):
        NativeEngine(net).run(spoil(inputs))


def test_frames_and_timesteps_must_agree():
    net, inputs = next(
        found for seed in range(9) if (found := integer_network(seed))[0].takes_frames
    )
    with pytest.raises(TimeError, match="frames"):
        NativeEngine(net).run(inputs[:1], timesteps=2)


def test_an_instruction_set_that_is_not_there_is_refused():
    net, _ = integer_network(2)
    with pytest.raises(ImplementationError, match="instruction set"):
        NativeEngine(net, isa="abacus")


def test_a_missing_library_is_named_with_the_way_to_build_it(monkeypatch):
    net, inputs = integer_network(2)
    native_engine._library.cache_clear()
    monkeypatch.setattr(kernels, "load_error", lambda: "is not built")
    try:
        with pytest.raises(ImplementationError, match="pip install --no-build-isolation"):
            NativeEngine(net).run(inputs)
    finally:
        native_engine._library.cache_clear()


def test_a_residual_network_runs():
    model = lbq.resnet20(10, width=1 / 16).eval()
    pixels = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
    net = to_fixed_point(lower(model, pixels.float()), pixels=None)
    assert torch.equal(run(net, pixels, backend="native"), run(net, pixels, backend="dense"))
