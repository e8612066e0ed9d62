import math
import warnings
from dataclasses import replace

import pytest
import torch
from integer_oracle import run_oracle
from random_networks import RandomNetwork, node_outputs, to_proven_integers
from torch import nn

import lbq
from lbq.errors import LoweringError, NonFiniteError, ParameterError, ShapeError
from lbq.graph.graph import prove
from lbq.graph.operators import Synapse
from lbq.graph.operators.rounding import best_unit, decay_as_fraction, rounded
from lbq.graph.operators.synapse import SHORTCUT_MAX
from lbq.lowering.fixed_point import Pixels, mean_inputs, to_fixed_point
from lbq.lowering.lower import lower
from lbq.lowering.units import Units
from lbq.neurons import BinaryLIF, BurstLIF, FixedStep, HardResetLIF, IntegerLIF
from lbq.runtime.run import run_network

PIXELS = Pixels(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))


def normalised(pixels):
    mean, std = (
        torch.tensor(values).double().reshape(3, 1, 1) for values in (PIXELS.mean, PIXELS.std)
    )
    return (pixels.double() / 255 - mean) / std


@pytest.mark.parametrize("seed", range(12))
def test_every_integer_equals_the_oracle(seed):
    model = RandomNetwork(seed)
    inputs = model.inputs()
    pixels = Pixels(mean=[0.4] * model.channels, std=[0.25] * model.channels)
    lowered = lower(model, inputs.float() / 64)
    net = to_proven_integers(lowered, bits=(4, 8, 16)[seed % 3], pixels=pixels)
    seen, expected = node_outputs(net, inputs), run_oracle(net, inputs)
    assert sum(int((seen[path].numpy() != expected[path]).sum()) for path in seen) == 0
    for backend in ("unary", "planes"):
        assert torch.equal(
            run_network(net, inputs, backend=backend), run_network(net, inputs, backend="dense")
        )


def test_raw_bytes_give_what_normalised_images_gave_borders_included():
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding=1, stride=2)
    model = nn.Sequential(
        conv, lbq.RepeatOverTime(1), lbq.OverTime(nn.Flatten(), nn.Linear(64, 2)),
        lbq.MeanOverTime(),
    ).double()  # fmt: skip
    pixels = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    lowered = lower(model[:2].eval(), normalised(pixels))
    net = to_fixed_point(lowered, bits=16, pixels=PIXELS)
    stem = net.operators["0"]
    assert isinstance(stem, Synapse)
    assert stem.bias is not None
    assert stem.bias.dim() == 3
    got = run_network(net, pixels, backend="dense")[0].double() * net.logit_scale
    torch.testing.assert_close(got, conv(normalised(pixels)).detach(), rtol=0, atol=2e-3)


def test_more_bits_move_fewer_levels():
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=1 / 8, timesteps=2).eval()
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    images = normalised(pixels).float()
    lowered = lower(model, images)
    shares = []
    for bits in (4, 8, 16):
        net = to_fixed_point(lowered, bits=bits, pixels=PIXELS)
        floats, integers = [], []
        run_network(lowered, images, watch=lambda *what, into=floats: into.append(what[2]))
        run_network(net, pixels, watch=lambda *what, into=integers: into.append(what[2]))
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
        given = {"bits": 4, "pixels": PIXELS, "calibration": calibration}
        net = to_fixed_point(lowered, **given)
        levels = node_outputs(lowered, images)["stem_neuron"]
        currents, integers = (n.operators[path](levels).double() for n in (lowered, net))
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
        to_fixed_point(lowered, bits=4, pixels=PIXELS, calibration=samples)
        for samples in (None, images)
    )
    synapses = [path for path, node in plain.operators.items() if isinstance(node, Synapse)]
    synapses.remove("stem.1")
    assert len(synapses) == 21
    for path in synapses:
        before, after = (net.operators[path] for net in (plain, calibrated))
        assert torch.equal(before.weight, after.weight)
        moved = after.bias.long() - (0 if before.bias is None else before.bias.long())
        assert moved.any(), path


def test_a_classifier_of_real_currents_is_refused_by_path():
    net = lower(lbq.resnet20(10, width=1 / 16, block="ms").eval(), torch.zeros(1, 3, 16, 16))
    with pytest.raises(LoweringError, match=r"classifier\.0\.2.*real-valued"):
        to_fixed_point(net, pixels=PIXELS)


def test_mistakes_are_explained():
    net = lower(lbq.resnet20(10, width=1 / 16).eval(), torch.zeros(1, 3, 16, 16))
    with pytest.raises(ParameterError, match="4, 8 or 16"):
        to_fixed_point(net, bits=7)
    with pytest.raises(ParameterError, match="3 channels"):
        to_fixed_point(net, pixels=Pixels(mean=[0.5], std=[0.5]))
    with pytest.raises(ParameterError, match="already"):
        to_fixed_point(to_fixed_point(net, pixels=PIXELS))


@pytest.mark.parametrize(
    ("mean", "std"), [((0.5, math.nan), (1, 1)), ((0, 0), (1, 0)), ((0, 0), (-1, 1))]
)
def test_pixels_are_numbers_and_spread(mean, std):
    with pytest.raises(ParameterError, match="must be finite"):
        Pixels(mean=mean, std=std)


@pytest.mark.parametrize(
    ("mean", "std"),
    [((125.3, 123.0, 113.9), (51.6, 50.8, 51.3)), ((-0.1,), (0.2,)), ((0.5,), (58.0,))],
)
def test_pixels_of_bytes_are_refused_with_the_fix(mean, std):
    with pytest.raises(ParameterError, match="divide those of bytes by 255"):
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
    with pytest.raises((ParameterError, ShapeError, NonFiniteError), match=why):
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


@pytest.fixture(scope="module")
def images():
    """A network of still images, images as it takes them, and as bytes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), lbq.RepeatOverTime(2), lbq.BurstLIF(7, step=0.3),
        lbq.OverTime(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(32, 10)),
        lbq.MeanOverTime(),
    ).eval()  # fmt: skip
    raw = torch.randint(0, 256, (32, 3, 1, 1), dtype=torch.uint8).expand(32, 3, 8, 8)
    shown = normalised(raw).float()
    return lower(model, shown), shown, raw


def test_images_need_to_be_told_how_they_came_from_bytes(images):
    net = images[0]
    with pytest.raises(ParameterError, match=r"pixels=lbq\.Pixels\(.*or pixels=None"):
        to_fixed_point(net)
    assert to_fixed_point(net, pixels=None).is_integer
    assert to_fixed_point(net, pixels=PIXELS).is_integer


def test_frames_and_features_are_counts_by_default():
    model = nn.Sequential(nn.Linear(4, 6), lbq.BurstLIF(), nn.Linear(6, 5))
    assert to_fixed_point(lower(model.eval(), torch.zeros(3, 1, 4))).is_integer


def test_the_agreement_is_counted_on_the_calibration_images(images):
    net, shown, raw = images
    integers = to_fixed_point(net, bits=8, pixels=PIXELS, calibration=shown)
    found, levels = integers.agreement, {}
    for name, network, inputs in (("real", net, shown), ("integer", integers, raw)):
        seen = levels.setdefault(name, [])
        answers = run_network(network, inputs, watch=lambda *at, into=seen: into.append(at[2]))
        levels[f"{name} answers"] = answers.argmax(1)
    equal = [a == b for a, b in zip(levels["real"], levels["integer"], strict=True)]
    assert found.samples == 32
    assert found.answers == (levels["real answers"] == levels["integer answers"]).double().mean()
    assert found.levels == torch.cat([e.flatten() for e in equal]).double().mean()
    assert found.answers > 0.9
    assert to_fixed_point(net, pixels=PIXELS).agreement is None


def test_a_normalisation_that_makes_no_bytes_of_the_images_warns(images):
    net, shown, _ = images
    with pytest.warns(UserWarning, match="are not bytes") as caught:
        to_fixed_point(net, pixels=None, calibration=shown)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="are not bytes"):
        to_fixed_point(net, pixels=Pixels(mean=(0.9,) * 3, std=(0.9,) * 3), calibration=shown)


def test_answers_that_differ_too_often_warn(images, monkeypatch):
    net, shown, _ = images
    monkeypatch.setattr(
        "lbq.graph.operators.synapse.rounded", lambda *args, **options: -rounded(*args, **options)
    )
    with pytest.warns(UserWarning, match=r"only \d+% of 32 calibration samples"):
        to_fixed_point(net, pixels=PIXELS, calibration=shown)


def test_neither_the_default_device_nor_autocast_changes_a_conversion(images):
    net, shown, _ = images
    given = {"pixels": PIXELS, "calibration": shown}
    expected = to_fixed_point(net, **given)
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        integers = to_fixed_point(net, **given)
    assert {tensor.device.type for tensor in integers.tensors.values()} == {"cpu"}
    for name, here in expected.tensors.items():
        assert torch.equal(here, integers.tensors[name]), name


@pytest.fixture(scope="module")
def units():
    """A network, the units of its currents, and the unit that suits each synapse."""
    net = lower(lbq.resnet20(10, width=1 / 8).eval(), torch.zeros(1, 3, 16, 16))
    best = {
        path: node.weight.double().flatten(1).abs().amax(1) / 127
        for path, node in net.operators.items()
        if isinstance(node, Synapse)
    }
    nodes = {
        path: replace(node, max_input=255)
        if isinstance(node, Synapse) and node.max_input is None
        else node
        for path, node in net.operators.items()
    }
    return net, Units(net, nodes, best), best


def test_what_is_added_has_one_unit(units):
    _, units, _ = units
    block = units.of("stages.1.0.merge")
    for part in ("synapse2.0", "shortcut.0"):
        assert torch.equal(units.of(f"stages.1.0.{part}"), block)
    assert torch.equal(units.of("stages.1.0.neuron2"), block)
    assert not torch.equal(units.of("stages.1.0.synapse1.0"), block)
    assert units.of("readout").numel() == 1  # all classes


def test_a_unit_fits_every_weight_that_it_is_for(units):
    net, units, best = units
    for path, unit in best.items():
        assert bool((units.of(path) >= unit).all())
    shortcut = net.operators["stages.0.0.shortcut"].weight.double()
    integers = shortcut / units.of("stages.0.0.shortcut")
    assert bool((integers.abs() <= SHORTCUT_MAX).all())


class Added(nn.Module):
    """Two linear layers whose currents are added; one has weights 60 times as large."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), BurstLIF())
        self.last = nn.Sequential(BurstLIF(), nn.Linear(12, 3))
        self.small, self.large = (nn.Linear(16, 12, bias=False) for _ in range(2))
        self.large.weight.data *= 60

    def forward(self, x):
        x = self.first(x)
        return self.last(self.small(x) + self.large(x)).mean(0)


@pytest.mark.parametrize(
    ("bits", "widths", "kept"), [(4, (4, 8), 1), (8, (8, 16), 25), (16, (16, 16), 400)]
)
def test_small_currents_that_are_added_to_large_ones_keep_their_bits(bits, widths, kept):
    torch.manual_seed(0)
    net = lower(Added().eval(), torch.ones(2, 1, 8), batch_axis=1)
    integers = to_fixed_point(net, bits=bits, pixels=None)
    small, large = (integers.operators[path] for path in ("small", "large"))
    assert (small.bits, large.bits) == widths
    assert small.weight.abs().amax(1).min() >= kept
    if bits < widths[1]:
        assert large.weight.abs().max() < 2 ** (widths[1] - 1) - 1  # not clipped


@pytest.mark.parametrize(("decay", "expected"), [(0.5, (1, 1)), (0.0, (0, 0)), (1.0, (1, 0))])
def test_simple_decays_are_exact(decay, expected):
    assert decay_as_fraction(decay, max_shift=8) == expected


def test_other_decays_are_near():
    for decay in torch.rand(100).tolist():
        multiplier, shift = decay_as_fraction(decay, max_shift=8)
        assert abs(multiplier / 2**shift - decay) <= 2**-9


def leaky(decay, timesteps, *, step=2.0, neuron=BurstLIF):
    torch.manual_seed(0)
    made = neuron(decay=decay) if neuron is not BurstLIF else BurstLIF(decay=decay, step=step)
    model = nn.Sequential(nn.Linear(4, 8), made, nn.Linear(8, 3), lbq.MeanOverTime()).eval()
    return lower(model, torch.ones(timesteps, 1, 4)), torch.randint(0, 8, (timesteps, 3, 4))


def integer_neuron(decay, timesteps, *, bits=4, **options):
    lowered, _ = leaky(decay, timesteps, **options)
    [(_, node)] = to_fixed_point(lowered, bits=bits, pixels=None).neurons()
    return node


@pytest.mark.parametrize("neuron", [BurstLIF, HardResetLIF, BinaryLIF, IntegerLIF])
@pytest.mark.parametrize(("decay", "timesteps"), [(0.999, 20), (0.9995, 12), (0.999, 2)])
def test_a_slow_leak_stays_a_leak(decay, timesteps, neuron):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        node = integer_neuron(decay, timesteps, neuron=neuron)
    assert 8 < node.shift <= 16
    assert abs(node.carry_share - decay) < 2**-9
    assert node.carry_share < 1


@pytest.mark.parametrize("timesteps", [1, 2, 50])
def test_multiples_of_a_256th_keep_their_bits(timesteps):
    for numerator in (0, 1, 64, 128, 179, 230, 255, 256):
        node = integer_neuron(numerator / 256, timesteps)
        found = node.multiplier, node.shift
        assert found == decay_as_fraction(numerator / 256, max_shift=8)


def test_a_decay_that_is_near_enough_in_8_bits_has_8():
    assert (integer_neuron(0.9, 4).multiplier, integer_neuron(0.9, 4).shift) == (115, 7)
    assert integer_neuron(0.9, 200).shift > 8  # 1.6 % of a membrane after many timesteps


@pytest.mark.parametrize(("decay", "timesteps"), [(0.999, 400), (0.9999, 2000)])
def test_a_decay_that_cannot_be_near_enough_warns_by_path(decay, timesteps):
    with pytest.warns(UserWarning, match=rf"^1 has a decay of {decay}, .* can differ by") as found:
        node = integer_neuron(decay, timesteps, bits=8)
    assert f"{node.multiplier} / 2**{node.shift}" in str(found[0].message)


def test_finer_decays_are_proven_too():
    lowered, inputs = leaky(0.999, 20)
    net = to_fixed_point(lowered, bits=4, pixels=None)
    seen, expected = node_outputs(net, inputs.byte()), run_oracle(net, inputs.byte())
    assert sum(int((seen[path].numpy() != expected[path]).sum()) for path in seen) == 0
    assert all(bound.bits <= 32 for bound in prove(net).values())


def test_integers_stay_within_their_bits():
    weight = torch.randn(4, 50).double() * 100
    for bits, largest in ((4, 7), (8, 127), (16, 32767)):
        integers = rounded(weight, torch.full((4,), 0.01).double(), bits=bits)
        assert integers.abs().max() == largest if bits < 16 else integers.abs().max() <= largest


def test_the_best_unit_loses_no_more_than_the_widest():
    weight = torch.randn(8, 200).double()
    widest = weight.abs().amax(1) / 7
    lost, plain = (
        (rounded(weight, unit, bits=4) * unit.unsqueeze(1) - weight).square().sum()
        for unit in (best_unit(weight, bits=4), widest)
    )
    assert lost < plain


def test_mean_inputs_are_those_of_the_levels():
    model = lbq.resnet20(10, width=1 / 16).double().eval()
    images, sums = torch.randn(4, 3, 16, 16).double(), []
    net = lower(model, images)
    means = mean_inputs(net, images)
    lbq.run_network(
        net, images, watch=lambda layer, t, level: layer == "stem_neuron" and sums.append(level)
    )
    expected = torch.stack(sums).double().mean((0, 1, 3, 4))
    torch.testing.assert_close(means["stages.0.0.synapse1.0"], expected)
    assert "stem.1" not in means


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("padding", [0, 1])
def test_two_convolutions_before_the_first_neuron_take_bytes(first, padding, bias):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, first, padding=padding, bias=bias),
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        lbq.RepeatOverTime(2),
        BurstLIF(),
        lbq.OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)),
        lbq.MeanOverTime(),
    ).eval()
    pixels = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    images = normalised(pixels).float()
    try:
        net = lbq.quantize(model, images, preprocessing=PIXELS, bits=16)
    except LoweringError as error:
        assert first > 1 or padding, error  # noqa: PT017 -- no single convolution computes it
        return
    assert net.agreement.levels > 0.99
    torch.testing.assert_close(
        run_network(net, pixels) * net.logit_scale, model(images), rtol=0, atol=0.02,
        check_dtype=False,
    )  # fmt: skip
