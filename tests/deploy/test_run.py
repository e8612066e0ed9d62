import pytest
import torch
from random_networks import RandomNetwork

import lbq
from lbq.deploy.fixed_point import to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.nodes import Shortcut, Synapse
from lbq.deploy.run import BACKENDS, run
from lbq.errors import ParameterError, ShapeError

pytestmark = pytest.mark.as_shipped  # the annotation checks stop tracers


@pytest.fixture(scope="module")
def networks():
    model = RandomNetwork(4, for_integers=False).double()
    pixels = model.inputs()
    return lower(model, pixels.double()), pixels


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(6))
def test_every_backend_gives_the_same_logits(seed, backend):
    model = RandomNetwork(seed, for_integers=False).double()
    inputs = model.inputs().double() / 64
    net = lower(model, inputs)
    torch.testing.assert_close(
        run(net, inputs, backend=backend), run(net, inputs), rtol=1e-9, atol=1e-9
    )


def test_a_watch_sees_what_it_sees_on_the_trained_network():
    model = lbq.resnet20(10, width=1 / 16).double().eval()
    images, seen, expected = torch.randn(2, 3, 16, 16).double(), [], []
    with torch.no_grad(), lbq.watch_levels(model, lambda *what: expected.append(what)):
        model(images)
    run(lower(model, images), images, watch=lambda *what: seen.append(what))
    assert [what[:2] for what in seen] == [what[:2] for what in expected]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("block", ["basic", "sew"])
def test_a_tally_counts_on_a_lowered_network_as_on_the_trained_one(block):
    model = lbq.resnet20(10, width=1 / 16, block=block).double().eval()
    images = torch.randn(3, 3, 16, 16).double()
    trained, net = lbq.Tally(model, images[:1]), lower(model, images)
    with torch.no_grad(), lbq.watch_levels(model, trained):
        model(images)
    lowered = lbq.Tally(net)
    run(net, images, watch=lowered, backend="planes")
    assert lowered.table().total() == trained.table().total()
    assert lowered.table().layers == trained.table().layers


def test_a_tally_counts_integers_too():
    model = lbq.resnet19(10, width=1 / 16).eval()
    frames = torch.randint(0, 4, (2, 3, 2, 16, 16), dtype=torch.uint8)
    net = to_fixed_point(lower(model, frames.float()))
    tally = lbq.Tally(net)
    run(net, frames, watch=tally)
    assert tally.table().num_images == 3
    assert not tally.table().untracked


def test_an_unknown_backend_is_refused(networks):
    net, pixels = networks
    with pytest.raises(ParameterError, match="abacus"):
        run(net, pixels.double(), backend="abacus")


def test_inputs_are_checked(networks):
    net, pixels = networks
    with pytest.raises(ShapeError):
        run(net, pixels.double()[..., 1:])


LEVELS = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("max_level", [1, 2, 3, 5, 7, 15, 31, 255])
@pytest.mark.parametrize("bits", [8, 16])
def test_every_level_times_every_extreme_weight_is_exact(max_level, bits, multiply):  # S6
    largest = 2 ** (bits - 1) - 1
    weights = torch.tensor([[-largest], [-1], [0], [1], [2], [largest]])
    synapse = Synapse(weights.to(torch.int8 if bits == 8 else torch.int16), max_input=max_level)
    levels = LEVELS[: max_level + 1].reshape(-1, 1)
    got = multiply(synapse, levels)
    assert got.dtype == torch.int32
    assert torch.equal(got.long(), levels.long() @ weights.T)


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
def test_shortcuts_are_multiplied_alike(multiply):
    shortcut = Shortcut(torch.tensor([-30000, 7], dtype=torch.int16), max_input=255)
    levels = torch.stack([LEVELS, LEVELS.flip(0)], dim=1)
    expected = levels.long() * torch.tensor([-30000, 7])
    assert torch.equal(multiply(shortcut, levels).long(), expected)


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
def test_negative_levels_subtract(multiply):
    synapse = Synapse(torch.tensor([[3.0, -2.0]]).double(), max_input=1)
    levels = torch.tensor([[-1, 1], [1, 0], [0, -1], [-1, -1]], dtype=torch.int8)
    assert multiply(synapse, levels).flatten().tolist() == [-5.0, 3.0, 2.0, -1.0]


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
def test_real_inputs_are_multiplied_as_they_are(multiply):
    synapse = Synapse(torch.tensor([[2.0]]), max_input=None)
    assert multiply(synapse, torch.tensor([[0.25]])).item() == 0.5
