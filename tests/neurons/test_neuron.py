"""The contract, kept by every neuron of the library."""

import copy

import pytest
import torch
from torch import nn

import lbq
from lbq import neurons
from lbq.errors import LBQError, ParameterError
from lbq.neurons import BurstLIF, Decay


def test_bursts_have_the_shape_of_the_currents(build_neuron, currents):
    assert build_neuron()(currents).shape == currents.shape


def test_nothing_is_remembered_between_calls(build_neuron):  # 10,000 sequences, bit for bit
    generator = torch.Generator().manual_seed(2)
    used, fresh = build_neuron(), build_neuron()
    before = {name: value.clone() for name, value in used.state_dict().items()}
    for _ in range(10):
        used(2 * torch.randn(3, 37, 4, 2, generator=generator))  # another batch size
        sequences = 2 * torch.randn(3, 1000, 4, 2, generator=generator)
        assert torch.equal(used(sequences), fresh(sequences))
    after = used.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_permuting_the_batch_permutes_the_answer(build_neuron, currents):
    neuron, order = build_neuron(), torch.randperm(currents.shape[1])
    assert torch.equal(neuron(currents[:, order]), neuron(currents)[:, order])


def test_a_stream_gives_the_same_bits_as_the_whole_sequence(build_streaming_neuron, currents):
    neuron, carry, pieces = build_streaming_neuron(), None, []
    for t in range(len(currents)):
        piece, carry = neuron.stream(currents[t : t + 1], carry)
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), neuron(currents))


def test_every_parameter_has_a_finite_gradient_after_one_step(build_neuron, currents):
    neuron = build_neuron()
    neuron(currents.requires_grad_()).square().mean().backward()
    for name, parameter in neuron.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.dim() >= 1, f"{name}: sharding refuses 0-d parameters"


def test_the_gradient_reaches_the_currents(build_neuron, currents):
    leaf = currents.clone().requires_grad_()
    build_neuron()(leaf).square().sum().backward()
    assert leaf.grad.isfinite().all()
    assert (leaf.grad != 0).float().mean() > 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_flips_no_level(build_neuron, dtype):  # 10^6 levels
    neuron, seen = build_neuron(), []
    neuron.emit.register_forward_hook(lambda module, args, levels: seen.append(levels))
    currents = 2 * torch.randn(3, 84, 4, 1000, generator=torch.Generator().manual_seed(3))
    neuron(currents.to(dtype).float())
    with torch.autocast("cpu", dtype=dtype):
        bursts = neuron(currents.to(dtype))
    assert torch.equal(seen[0], seen[1])
    assert seen[0].numel() > 1_000_000
    assert bursts.dtype == dtype


def test_levels_lie_in_their_range(build_neuron, currents):
    neuron, seen = build_neuron(), []
    neuron.emit.register_forward_hook(lambda module, args, levels: seen.append(levels))
    neuron(100 * currents)
    assert seen[0].max() == neuron.max_level
    assert seen[0].min() >= (-1 if seen[0].dtype == torch.int8 else 0)


def test_a_state_dict_carries_the_whole_neuron(build_neuron, currents):
    trained, restored = build_neuron(), build_neuron()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.2)
    restored.load_state_dict(trained.state_dict())
    assert torch.equal(trained(currents), restored(currents))


def test_float64_networks_compute_in_float64(build_neuron, currents):
    assert build_neuron().double()(currents.double()).dtype == torch.float64


def test_half_precision_parameters_flip_no_level(build_neuron):
    exact, rounded, seen = build_neuron(), build_neuron().bfloat16(), []
    exact.load_state_dict({k: v.float() for k, v in rounded.state_dict().items()})
    for neuron in (exact, rounded):
        neuron.emit.register_forward_hook(lambda module, args, levels: seen.append(levels))
    currents = 2 * torch.randn(3, 50, 4, 100, generator=torch.Generator().manual_seed(3))
    exact(currents)
    rounded(currents)
    assert (seen[0] != seen[1]).float().mean() == 0


def test_neurons_can_be_built_and_printed_without_memory(build_neuron):
    with torch.device("meta"):
        neuron = build_neuron()
    assert type(neuron).__name__ in repr(neuron)
    assert "meta" in str(neuron(torch.randn(3, 2, 4, 2, device="meta")).device)


@pytest.mark.parametrize(
    "build", [neurons.IntegerLIF, neurons.MultiLevelLIF, lambda n: neurons.LMHT(2, n), BurstLIF]
)
def test_levels_that_fit_no_byte_are_refused(build):
    for wrong in (0, 256):
        with pytest.raises(ParameterError, match=r"1\.\.255"):
            build(wrong)


def test_tau_and_decay_are_two_names_of_one_thing():
    assert Decay(None, tau=4.0, default=0.1)().item() == Decay(0.75, default=0.1)().item() == 0.75
    learned = Decay(0.75, default=0.5, learn=True)
    assert learned().item() == pytest.approx(0.75)
    assert [name for name, _ in learned.named_parameters()] == ["raw_decay"]


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("decay and tau are the same setting", {"decay": 0.5, "tau": 2.0}),
        ("at least one timestep, got 0.5", {"tau": 0.5}),
        (r"decay must lie in 0\.\.1, got 1.5", {"decay": 1.5}),
        ("strictly inside", {"decay": 1.0, "learn_decay": True}),
    ],
)
def test_a_wrong_decay_is_refused(message, arguments):
    with pytest.raises(ParameterError, match=message) as caught:
        BurstLIF(**arguments)
    assert isinstance(caught.value, LBQError)


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr("lbq.neurons.neuron._warned", [])


def batch_first_layers():
    image, features = torch.randn(4, 3, 8, 8), torch.randn(4, 8)
    return {
        "convolution": (nn.Conv2d(3, 5, 3), image),
        "batch norm": (nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)), image),
        "1-D": (nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5)), image[..., 0]),
        "linear": (nn.Linear(8, 5), features),
        "linear without bias": (nn.Linear(8, 5, bias=False), features),
    }


@pytest.mark.parametrize("layer", batch_first_layers())
def test_a_batch_in_the_place_of_time_warns_once_in_train_mode(layer, unwarned):
    module, inputs = batch_first_layers()[layer]
    network = nn.Sequential(module, lbq.BurstLIF())
    network.eval()(inputs)
    with torch.no_grad():
        network.train()(inputs)  # no gradient, no evidence
    with pytest.warns(UserWarning, match=r"takes that axis as time.*RepeatOverTime.*check_time"):
        network(inputs)
    network(inputs)  # warnings are errors: a second one would fail


def test_real_sequences_never_warn(unwarned):
    neuron, frames = lbq.BurstLIF(), torch.randn(4, 2, 3, 8, 8)
    over_time = lbq.OverTime
    for currents in (
        over_time(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5))(frames),
        lbq.RepeatOverTime(3)(nn.Conv2d(3, 5, 3)(frames[0])),
        lbq.RepeatOverTime(3)(nn.Linear(8, 5)(frames[0, :, 0, 0])),
        over_time(nn.Conv1d(3, 5, 3))(frames[..., 0]),  # [T, B, C, L]
        nn.Linear(8, 5)(frames[:, :, 0, 0]),  # [T, B, F]
        nn.Linear(8, 5, bias=False)(frames[:, :, 0, 0]),
        nn.Linear(8, 5)(torch.randn(512, 2, 3, 8)),  # [T, B, N, D], a long T
        torch.stack([nn.Conv2d(3, 5, 3)(frame) for frame in frames]),
        nn.Linear(8, 1)(frames[:, :, 0, 0]).squeeze(-1),  # [T, B]
        frames.requires_grad_(),
    ):
        assert currents.requires_grad
        neuron.train()(currents)


def test_compiling_a_neuron_in_train_mode_is_not_stopped_by_the_warning(unwarned):
    network = nn.Sequential(nn.Linear(8, 5), lbq.RepeatOverTime(2), lbq.BurstLIF(step=0.1))
    inputs = torch.randn(4, 8)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs), network(inputs))
    torch.export.export(network.train(), (inputs,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_level", 9),
        ("surrogate", neurons.BoxET()),
        ("tau", 3.0),
        ("reset_mode", "none"),
        ("keep", "currents"),
        ("detach_carry", True),
    ],
)
def test_settings_that_would_have_no_effect_later_are_refused(name, value):
    neuron = BurstLIF(5)
    with pytest.raises(
        ParameterError, match=rf"{name} of a BurstLIF is fixed .* BurstLIF\({name}="
    ):
        setattr(neuron, name, value)
    assert copy.deepcopy(neuron).max_level == 5


def test_max_level_of_every_neuron_is_fixed(build_neuron):
    neuron = build_neuron()
    with pytest.raises(ParameterError, match="max_level of a"):
        neuron.max_level = 7


def test_a_neuron_of_the_users_own_may_have_any_attribute():
    class Mine(BurstLIF):
        def __init__(self, tau):
            super().__init__(tau=tau)
            self.tau = tau

    class Own(neurons.Neuron):
        def __init__(self):
            super().__init__(1)
            self.max_level = 3

        def scan(self, currents, carry):
            return currents, currents, carry

    assert Mine(3.0).tau == 3.0
    assert Own().max_level == 3
