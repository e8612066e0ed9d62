"""A stream gives the outputs of the whole sequence, frame by frame."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from random_networks import RandomNetwork, to_proven_integers
from torch import nn
from torch.nn import functional as F

import lbq
from lbq import neurons
from lbq.errors import LoweringError, ParameterError, ShapeError, TimeError
from lbq.kernels import native_scan as kernels
from lbq.time import MeanOverTime, OverTime, RepeatOverTime

T = 4


class Tokens(nn.Module):
    """Attention between tokens and neurons, over frames ``[T, B, tokens, features]``."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(12, 16)
        self.norm = nn.LayerNorm(16)
        self.neuron1, self.neuron2 = lbq.BurstLIF(step=0.25), lbq.BurstLIF(step=0.25)
        self.queries, self.keys, self.values = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 5)

    def forward(self, frames):
        x = self.neuron1(self.norm(self.embed(frames)))
        mixed = F.scaled_dot_product_attention(self.queries(x), self.keys(x), self.values(x))
        return self.head(self.neuron2(mixed)).mean(2).mean(0)


def mlp(neuron=None):
    hidden = lbq.BurstLIF(step=0.25) if neuron is None else neuron
    return nn.Sequential(
        OverTime(nn.Linear(30, 64)), hidden, OverTime(nn.Linear(64, 5)), MeanOverTime()
    )


def conv_1d():
    return nn.Sequential(
        OverTime(nn.Conv1d(3, 16, 5, padding=2), nn.BatchNorm1d(16)),
        lbq.BurstLIF(step=0.25),
        OverTime(nn.Conv1d(16, 16, 3, stride=2), nn.Flatten(), nn.Linear(16 * 9, 5)),
        MeanOverTime(),
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        RepeatOverTime(T),
        lbq.BurstLIF(step=0.25),
        OverTime(nn.Conv2d(8, 16, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 9, 5)),
        MeanOverTime(),
    )


def events(**arguments):
    return lbq.resnet20(5, timesteps=T, width=1 / 16, form="events", **arguments)


NETWORKS = {
    "MLP": (mlp, (30,)),
    "1-D convolutions": (conv_1d, (3, 20)),
    "tokens": (Tokens, (7, 12)),
    "CNN of static images": (cnn, (3, 8, 8)),
    "ResNet of events": (events, (2, 16, 16)),
    "ResNet of events, SEW": (lambda: events(block="sew"), (2, 16, 16)),
    "ResNet of events, MS": (lambda: events(block="ms"), (2, 16, 16)),
    "ResNet of images": (lambda: lbq.resnet18(5, timesteps=T, width=1 / 16), (3, 32, 32)),
}


def build(name, *, batch, seed=0):
    """Return a network with random statistics, and frames or images for it."""
    torch.manual_seed(seed)
    make, shape = NETWORKS[name]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
    is_static = any(isinstance(module, RepeatOverTime) for module in model.modules())
    inputs = torch.randn(*(() if is_static else (T,)), batch, *shape)
    return model.eval(), inputs, [inputs] * T if is_static else inputs


def streamed(model, frames, **options):
    stream = lbq.stream(model, **options)
    return torch.stack([stream(frame) for frame in frames])


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_with_timesteps_floats_have_the_bits_of_the_whole_sequence(name, batch):
    model, inputs, frames = build(name, batch=batch)
    outputs = streamed(model, frames, timesteps=T)
    assert outputs.unique().numel() > T
    assert torch.equal(outputs.mean(0), model(inputs))


class ByPosition(nn.Module):
    """A layer whose result depends on the position of a row, as rounding might."""

    def forward(self, rows):
        return rows + 0.1 * torch.arange(len(rows)).unsqueeze(1)


@pytest.mark.parametrize("neuron", [lbq.BurstLIF(step=0.25), neurons.MultiLevelLIF()])
def test_with_timesteps_every_row_has_the_position_of_the_whole_sequence(neuron):
    model = nn.Sequential(OverTime(nn.Linear(30, 64), ByPosition()), neuron, MeanOverTime()).eval()
    frames = torch.randn(T, 3, 30)
    assert torch.equal(streamed(model, frames, timesteps=T).mean(0), model(frames))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_without_timesteps_only_the_rounding_differs(name, batch):
    model, inputs, frames = build(name, batch=batch, seed=1)
    model.double()  # in which no level is so close to a threshold
    outputs = streamed(model, [frame.double() for frame in frames])
    torch.testing.assert_close(outputs.mean(0), model(inputs.double()), rtol=1e-9, atol=1e-9)


NEURONS = {
    "burst": lambda: lbq.BurstLIF(step=lbq.LearnedStep(0.25, channels=64), learn_decay=True),
    "binary": lambda: neurons.BinaryLIF(threshold=0.25),
    "ternary": lambda: neurons.TernaryLIF(step=0.25),
    "original ternary": neurons.OriginalTernaryLIF,
    "integer": neurons.IntegerLIF,
    "multi-level": neurons.MultiLevelLIF,
}


@pytest.mark.parametrize("timesteps", [None, T])
@pytest.mark.parametrize("name", NEURONS)
def test_every_neuron_continues_from_its_carry(name, timesteps):
    torch.manual_seed(2)
    neuron = NEURONS[name]()
    currents = torch.randn(T, 3, 64)
    if name == "burst":
        currents = currents[..., None]  # [T, B, C, 1]
        neuron = nn.Sequential(neuron, nn.Flatten(2))
    whole = neuron(currents)
    assert not torch.equal(whole, torch.cat([neuron(frame[None]) for frame in currents]))
    stream = lbq.stream(neuron.eval(), timesteps=timesteps)
    parts = [stream(frame) for frame in currents]  # [1, B, n] without a mean over time
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("seed", range(12))
def test_lowered_networks_have_the_bits_of_the_whole_sequence(seed):
    model = RandomNetwork(seed, for_integers=seed % 2 == 0)
    inputs = model.inputs().float()
    net = lbq.lower(model, inputs)
    if any(isinstance(module, neurons.LMHT) for module in model.modules()):
        with pytest.raises(TimeError, match="needs the whole sequence"):
            lbq.stream(net)
        return
    frames = inputs if net.takes_frames else [inputs] * net.timesteps
    outputs = streamed(net, frames, timesteps=net.timesteps)
    assert torch.equal(outputs.mean(0), lbq.run_network(net, inputs))


def integer_network(seed):
    model = RandomNetwork(seed)
    inputs = model.inputs()
    net = to_proven_integers(lbq.lower(model, inputs.float()), bits=8)
    return net, inputs, inputs if net.takes_frames else [inputs] * net.timesteps


def refuse(network):
    raise LoweringError("the engine does not take this network")


@pytest.mark.parametrize("is_native", [False, True], ids=["torch", "native"])
@pytest.mark.parametrize("seed", range(12))
def test_integers_have_the_bits_of_the_whole_sequence(seed, is_native, monkeypatch):
    if is_native and kernels.isa() is None:
        pytest.skip("the native library is not built")
    net, inputs, frames = integer_network(seed)
    expected = {
        name: lbq.run_network(net, inputs, backend=name) for name in ("dense", "unary", "planes")
    }
    if not is_native:
        monkeypatch.setattr("lbq.runtime.native_engine.engine_of", refuse)
    stream = lbq.stream(net)
    assert (stream._engine is not None) == is_native
    outputs = [stream(frame) for frame in frames]
    assert all(torch.equal(sum(outputs), whole) for whole in expected.values())


def test_an_integer_network_is_streamed_for_as_long_as_it_is_proven():
    net, _, frames = integer_network(1)
    stream = lbq.stream(net)
    for frame in frames:
        stream(frame)
    with pytest.raises(TimeError, match=f"after {net.timesteps} timesteps"):
        stream(frames[0])


def test_real_networks_are_streamed_for_any_number_of_timesteps():
    model, inputs, _ = build("ResNet of events", batch=1)
    for net in (model, lbq.lower(model, inputs)):
        assert streamed(net, [*inputs, *inputs]).shape == (2 * T, 1, 5)


def test_frames_are_checked_like_the_inputs_of_run():
    model, inputs, _ = build("ResNet of events", batch=2)
    net = lbq.lower(model, inputs)
    with pytest.raises(ShapeError, match=r"takes \[B, 2, 16, 16\]"):
        lbq.stream(net)(inputs)
    with pytest.raises(lbq.LBQError, match="NaN"):
        lbq.stream(net)(torch.full((2, 2, 16, 16), torch.nan))


def test_another_batch_needs_a_new_stream():
    stream = lbq.stream(mlp().eval())
    stream(torch.randn(2, 30))
    with pytest.raises(ShapeError, match=r"start a new lbq\.stream"):
        stream(torch.randn(3, 30))


def test_streams_of_one_network_do_not_affect_each_other():
    model, inputs, frames = build("MLP", batch=2)
    expected = streamed(model, frames)
    first, second = lbq.stream(model), lbq.stream(model)
    outputs = []
    for frame in frames:
        outputs.append(first(frame))
        second(-frame)
        model(inputs)  # starts from rest, and leaves nothing behind
    assert torch.equal(torch.stack(outputs), expected)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: streamed(model, frames), range(8)))
    assert all(torch.equal(each, expected) for each in found)


class TwoSides(nn.Module):
    """One neuron that is called twice, for two halves of a frame."""

    def __init__(self):
        super().__init__()
        self.neuron = lbq.BurstLIF(step=0.5)

    def forward(self, frames):
        left, right = frames.chunk(2, dim=-1)
        return self.neuron(left) - 2 * self.neuron(right)


@pytest.mark.parametrize("timesteps", [None, T])
def test_every_call_of_a_shared_neuron_has_its_own_carry(timesteps):
    model, frames = TwoSides().eval(), torch.randn(T, 2, 10)
    outputs = streamed(model, frames, timesteps=timesteps)
    assert torch.equal(outputs.flatten(0, 1), model(frames))


class Moody(nn.Module):
    """Calls its neuron as often as it is asked to; or raises behind it."""

    def __init__(self):
        super().__init__()
        self.neuron = lbq.BurstLIF()
        self.calls, self.raises = 1, False

    def forward(self, frames):
        outputs = [self.neuron(frames) for _ in range(self.calls)]
        if self.raises:
            raise ValueError("behind the neuron")
        return sum(outputs, frames)


@pytest.mark.parametrize(("calls", "match"), [(2, "more or fewer"), (0, "none of its neurons")])
def test_other_calls_at_a_later_timestep_are_an_error(calls, match):
    model = Moody().eval()
    stream = lbq.stream(model)
    stream(torch.randn(1, 3))
    model.calls = calls
    with pytest.raises(TimeError, match=match):
        stream(torch.randn(1, 3))


def test_an_exception_leaves_the_carries_as_they_were():
    model, frames = Moody().eval(), torch.randn(T, 2, 5)
    expected = streamed(model, frames)
    stream = lbq.stream(model)
    outputs = []
    for frame in frames:
        model.raises = True
        with pytest.raises(ValueError, match="behind"):
            stream(frame)
        model.raises = False
        outputs.append(stream(frame))
    assert torch.equal(torch.stack(outputs), expected)


def test_neurons_that_need_the_whole_sequence_are_refused():
    model = mlp(neurons.LMHT(T)).eval()
    with pytest.raises(TimeError, match=r"the neuron 1 \(LMHT\)"):
        lbq.stream(model)
    with pytest.raises(TimeError, match="mixes the currents of all timesteps"):
        lbq.stream(lbq.lower(model, torch.randn(T, 1, 30)))


def test_statistics_over_time_are_refused():
    model = conv_1d()
    with pytest.raises(ParameterError, match=r"call model\.eval\(\)"):
        lbq.stream(model)(torch.randn(1, 3, 20))
    model.eval()[0][1].running_mean = None
    with pytest.raises(ParameterError, match=r"0\.1 has no running statistics"):
        lbq.stream(model)(torch.randn(1, 3, 20))


def test_a_network_without_neurons_is_refused():
    with pytest.raises(ParameterError, match="no neuron"):
        lbq.stream(nn.Linear(2, 2).eval())


class OwnRepetition(nn.Module):
    def __init__(self):
        super().__init__()
        self.neuron = lbq.BurstLIF()

    def forward(self, images):
        return self.neuron(images.expand(T, *images.shape[1:])).mean(0)


def test_time_that_a_stream_does_not_know_of_is_refused():
    with pytest.raises(TimeError, match="the neuron neuron received currents of shape"):
        lbq.stream(OwnRepetition().eval())(torch.randn(2, 3))


@pytest.mark.parametrize("name", ["CNN of static images", "ResNet of events"])
def test_timesteps_must_be_those_of_the_network(name):
    model, inputs, _ = build(name, batch=1)
    for net in (model, lbq.lower(model, inputs)):
        with pytest.raises(TimeError, match=f"built for {T} timesteps"):
            lbq.stream(net, timesteps=T + 1)
    with pytest.raises(TimeError, match="at least one"):
        lbq.stream(model, timesteps=0)


def test_with_timesteps_the_output_must_show_its_batch():
    model = nn.Sequential(mlp(), nn.Flatten(0)).eval()
    stream = lbq.stream(model, timesteps=T)
    with pytest.raises(ShapeError, match="without timesteps"):
        stream(torch.randn(3, 30))


def test_levels_are_seen_while_a_network_is_streamed():
    model, inputs, frames = build("ResNet of events", batch=2)
    whole, parts = {}, {}

    def watch(seen):
        return lambda layer, t, level: seen.setdefault(layer, []).append(level.double().mean())

    model.double()
    with lbq.watch_levels(model, watch(whole)):
        model(inputs.double())
    with lbq.watch_levels(model, watch(parts)):
        streamed(model, frames.double())
    assert whole == parts


def test_a_fused_network_is_streamed_unfused():
    model, inputs, frames = build("ResNet of events", batch=3)
    fused = events(fused=True).eval()
    fused.load_state_dict(model.state_dict())
    fused.to(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)
    assert torch.equal(streamed(fused, frames, timesteps=T).mean(0), model(inputs))


def test_a_compiled_network_is_streamed_uncompiled():
    model, _, frames = build("MLP", batch=2)
    expected = streamed(model, frames)
    compiled = torch.compile(model, backend="eager")
    compiled(frames)
    assert torch.equal(streamed(compiled, frames), expected)
