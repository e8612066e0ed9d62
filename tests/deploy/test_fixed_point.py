import math

import pytest
import torch
from integer_oracle import run_oracle
from random_networks import RandomNetwork, to_proven_integers
from torch import nn

import lbq
from lbq.deploy.fixed_point import Pixels, to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.nodes import Synapse
from lbq.deploy.run import run
from lbq.errors import LoweringError, ParameterError, ShapeError
from lbq.neurons import LMHT, BurstLIF, FixedStep, MultiLevelLIF, TernaryLIF

pytestmark = pytest.mark.as_shipped  # the annotation checks stop tracers

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def normalised(pixels):
    mean, std = (torch.tensor(values).double().reshape(3, 1, 1) for values in (MEAN, STD))
    return (pixels.double() / 255 - mean) / std


def outputs(net, inputs):
    seen = {}
    hooks = [
        node.register_forward_hook(
            lambda node, args, out, path=place.path: seen.update({path: out})
        )
        for place, node in net.nodes()
    ]
    run(net, inputs)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_every_integer_equals_the_oracle(seed):
    model = RandomNetwork(seed)
    inputs = model.inputs()
    pixels = Pixels(mean=[0.4] * model.channels, std=[0.25] * model.channels)
    lowered = lower(model, inputs.float() / 64)
    net = to_proven_integers(lowered, bits=(4, 8, 16)[seed % 3], pixels=pixels)
    seen, expected = outputs(net, inputs), run_oracle(net, inputs)
    assert sum(int((seen[path].numpy() != expected[path]).sum()) for path in seen) == 0
    for backend in ("unary", "planes"):
        assert torch.equal(run(net, inputs, backend=backend), run(net, inputs))


def test_raw_bytes_give_what_normalised_images_gave_borders_included():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding=1, stride=2)
    model = nn.Sequential(
        conv, lbq.models.RepeatOverTime(1), lbq.models.OverTime(nn.Flatten(), nn.Linear(64, 2)),
        lbq.models.MeanOverTime(),
    ).double()  # fmt: skip
    pixels = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    lowered = lower(model[:2].eval(), normalised(pixels))
    net = to_fixed_point(lowered, bits=16, pixels=Pixels(mean=MEAN, std=STD))
    stem = net.get_submodule("0")
    assert isinstance(stem, Synapse)
    assert stem.bias is not None
    assert stem.bias.dim() == 3
    got = run(net, pixels)[0].double() * net.logit_scale
    torch.testing.assert_close(got, conv(normalised(pixels)).detach(), rtol=0, atol=2e-3)


def test_more_bits_move_fewer_levels():
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=1 / 8, timesteps=2).eval()
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    images = normalised(pixels).float()
    lowered = lower(model, images)
    shares = []
    for bits in (4, 8, 16):
        net = to_fixed_point(lowered, bits=bits, pixels=Pixels(mean=MEAN, std=STD))
        floats, integers = [], []
        run(lowered, images, watch=lambda *what, into=floats: into.append(what[2]))
        run(net, pixels, watch=lambda *what, into=integers: into.append(what[2]))
        moved = sum(int((a != b).sum()) for a, b in zip(floats, integers, strict=True))
        shares.append(moved / sum(level.numel() for level in floats))
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 0.02


def test_calibration_takes_the_mean_error_of_rounding_out():
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=1 / 8).eval()
    pixels = torch.randint(0, 256, (16, 3, 16, 16), dtype=torch.uint8)
    images = normalised(pixels).float()
    lowered = lower(model, images)
    path, errors = "stages.0.0.synapse1.0", []
    for calibration in (None, images):
        given = {"bits": 4, "pixels": Pixels(mean=MEAN, std=STD), "calibration": calibration}
        net = to_fixed_point(lowered, **given)
        levels = outputs(lowered, images)["stem_neuron"]
        currents, integers = (n.get_submodule(path)(levels).double() for n in (lowered, net))
        unit = (currents * integers).sum((0, 1, 3, 4)) / integers.square().sum((0, 1, 3, 4))
        error = (currents - integers * unit.reshape(-1, 1, 1))[..., 1:-1, 1:-1]
        errors.append(error.mean((0, 1, 3, 4)).abs().mean().item())
    assert errors[1] < errors[0] / 2


def test_calibration_corrects_every_synapse_that_reads_levels():
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    images = normalised(pixels).float()
    model = lbq.resnet20(10, width=1 / 8, neuron=lambda c: BurstLIF(step=FixedStep(0.1)))
    lowered = lower(model.eval(), images)
    plain, calibrated = (
        to_fixed_point(lowered, bits=4, pixels=Pixels(mean=MEAN, std=STD), calibration=samples)
        for samples in (None, images)
    )
    synapses = [path for path, node in plain.named_modules() if isinstance(node, Synapse)]
    synapses.remove("stem.1")
    assert len(synapses) == 21
    for path in synapses:
        before, after = (net.get_submodule(path) for net in (plain, calibrated))
        assert torch.equal(before.weight, after.weight)
        moved = after.bias.long() - (0 if before.bias is None else before.bias.long())
        assert moved.any(), path


@pytest.mark.parametrize(
    ("neuron", "why"),
    [
        (lambda c: TernaryLIF(), "negative levels"),
        (lambda c: MultiLevelLIF(), "membrane of its own"),
        (lambda c: LMHT(2), "mixes timesteps"),
    ],
)
def test_neurons_without_an_integer_form_are_refused_by_path(neuron, why):
    net = lower(lbq.resnet20(10, width=1 / 16, neuron=neuron).eval(), torch.zeros(1, 3, 16, 16))
    with pytest.raises(LoweringError, match=f"stem_neuron.*{why}"):
        to_fixed_point(net, pixels=Pixels(mean=MEAN, std=STD))


def test_a_classifier_of_real_currents_is_refused_by_path():
    net = lower(lbq.resnet20(10, width=1 / 16, block="ms").eval(), torch.zeros(1, 3, 16, 16))
    with pytest.raises(LoweringError, match=r"classifier\.0\.2.*real-valued"):
        to_fixed_point(net, pixels=Pixels(mean=MEAN, std=STD))


def test_mistakes_are_explained():
    net = lower(lbq.resnet20(10, width=1 / 16).eval(), torch.zeros(1, 3, 16, 16))
    with pytest.raises(ParameterError, match="4, 8 or 16"):
        to_fixed_point(net, bits=7)
    with pytest.raises(ParameterError, match="3 channels"):
        to_fixed_point(net, pixels=Pixels(mean=[0.5], std=[0.5]))
    with pytest.raises(ParameterError, match="already"):
        to_fixed_point(to_fixed_point(net, pixels=Pixels(mean=MEAN, std=STD)))


@pytest.mark.parametrize(
    ("mean", "std"), [((0.5, math.nan), (1, 1)), ((0, 0), (1, 0)), ((0, 0), (-1, 1))]
)
def test_pixels_are_numbers_and_spread(mean, std):
    with pytest.raises(ParameterError, match="must be finite"):
        Pixels(mean=mean, std=std)


@pytest.mark.parametrize(
    ("calibration", "why"),
    [
        (torch.zeros(0, 3, 8, 8), "at least one input"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "normalised floats"),
        (torch.zeros(2, 3, 9, 9), "9"),
        (torch.full((2, 3, 8, 8), math.nan), "NaN"),
    ],
)
def test_calibration_takes_what_the_lowered_network_takes(calibration, why):
    net = lower(lbq.resnet20(10, width=1 / 32).eval(), torch.zeros(1, 3, 8, 8))
    given = Pixels(mean=(0.5,) * 3, std=(0.25,) * 3)
    with pytest.raises((ParameterError, ShapeError), match=why):
        to_fixed_point(net, pixels=given, calibration=calibration)


def test_weights_that_are_no_numbers_are_refused_by_their_path():
    model = nn.Sequential(nn.Linear(4, 6), lbq.BurstLIF(), nn.Linear(6, 5))
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    with pytest.raises(LoweringError, match="2 cannot be computed in integers: it holds a NaN"):
        to_fixed_point(lower(model.eval(), torch.zeros(3, 1, 4)))


def test_a_neuron_that_reads_the_input_is_refused_by_its_path():
    model = nn.Sequential(lbq.BurstLIF(), nn.Linear(4, 5))
    with pytest.raises(LoweringError, match=r"0 cannot .*: it reads the input without a synapse"):
        to_fixed_point(lower(model.eval(), torch.zeros(3, 1, 4)))
