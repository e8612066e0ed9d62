import pytest
import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

import lbq
from lbq import neurons
from lbq.errors import ParameterError, ShapeError, TimeError
from lbq.models import ResNetShape
from lbq.neurons import named_neurons
from lbq.time import FramesIn, ImagesIn, MeanOverTime, OverTime, RepeatOverTime

TIMESTEPS = 2

NEURONS = {
    "LBQ": lambda channels: neurons.BurstLIF(),
    "V1": lambda channels: neurons.BurstLIF(step=1.0, surrogate=neurons.BoxET()),
    "per channel": lambda channels: neurons.BurstLIF(step=neurons.LearnedStep(channels=channels)),
    "binary": lambda channels: neurons.BinaryLIF(),
    "ternary": lambda channels: neurons.TernaryLIF(step=neurons.LearnedStep()),
    "ternary original": lambda channels: neurons.OriginalTernaryLIF(),
    "I-LIF": lambda channels: neurons.IntegerLIF(),
    "MLF": lambda channels: neurons.MultiLevelLIF(),
    "LM-HT": lambda channels: neurons.LMHT(TIMESTEPS),
    "ReLU": lambda channels: nn.ReLU(),
}
BUILDERS = {
    "resnet18": (lbq.resnet18, "imagenet", (3, 224, 224)),
    "resnet19": (lbq.resnet19, "events", (2, 32, 32)),
    "resnet20": (lbq.resnet20, "cifar", (3, 32, 32)),
    "resnet34": (lbq.resnet34, "imagenet", (3, 224, 224)),
}


def inputs_for(form, shape, batch=3, memory_format=torch.contiguous_format):
    shape = (TIMESTEPS * batch if form == "events" else batch, *shape)
    inputs = torch.randn(*shape, generator=torch.Generator().manual_seed(5))
    inputs = inputs.to(memory_format=memory_format)
    return inputs.unflatten(0, (TIMESTEPS, batch)) if form == "events" else inputs


@pytest.mark.parametrize("channels_last", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("neuron", NEURONS.values(), ids=NEURONS)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_neuron_in_every_shape_takes_a_training_step(name, neuron, channels_last):
    torch.manual_seed(0)
    build, form, shape = BUILDERS[name]
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    width = 1 / 4 if form == "imagenet" else 1 / 16  # docs/log.md: oneDNN crashes on narrower ones
    model = build(7, timesteps=TIMESTEPS, neuron=neuron, width=width)
    model = model.to(memory_format=memory_format)
    inputs = inputs_for(form, shape, memory_format=memory_format)
    lbq.calibrate_steps(model, [inputs])  # so that no layer is silent
    for _, layer in neurons.named_neurons(model):
        if isinstance(layer, neurons.BinaryLIF):
            layer.threshold.fill_(0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = [parameter.clone() for parameter in model.parameters()]
    loss = F.cross_entropy(model(inputs), torch.tensor([0, 1, 2]))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    first = next(model.parameters())
    assert first.grad.any(), "no gradient reaches the stem"
    optimizer.step()
    assert loss.isfinite()
    assert not torch.equal(before[0], first)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("block", ["basic", "sew", "ms"])
@pytest.mark.parametrize("form", ["cifar", "imagenet", "events"])
def test_every_network_and_block_takes_every_form_of_input(name, block, form):
    build = BUILDERS[name][0]
    model = build(4, timesteps=TIMESTEPS, width=1 / 16, block=block, form=form)
    shape = (2 if form == "events" else 3, 32, 32)
    logits = model(inputs_for(form, shape))
    assert logits.shape == (3, 4)
    logits.sum().backward()


class LeafTracer(torch.fx.Tracer):
    """Traces a network down to its neurons, its folds over time and torch's own modules."""

    def is_leaf_module(self, module, name):
        time = (OverTime, RepeatOverTime, MeanOverTime, ImagesIn, FramesIn)
        return isinstance(module, (*time, neurons.Neuron)) or super().is_leaf_module(module, name)


@pytest.mark.parametrize("block", ["basic", "sew", "ms"])
@pytest.mark.parametrize("form", ["cifar", "imagenet", "events"])
def test_the_networks_can_be_traced(block, form):
    model = lbq.resnet20(4, timesteps=TIMESTEPS, width=1 / 16, block=block, form=form).eval()
    inputs = inputs_for(form, (2 if form == "events" else 3, 32, 32))
    traced = torch.fx.GraphModule(model, LeafTracer().trace(model))
    torch.testing.assert_close(traced(inputs), model(inputs))


def test_channels_last_computes_the_same():
    model = lbq.resnet20(10, width=1 / 8).eval().double()
    images = inputs_for("cifar", (3, 32, 32)).double()
    expected = model(images)
    got = model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_resnet20_is_the_papers():
    model, reference = lbq.resnet20(10), lbq.resnet20(10, timesteps=1, neuron=NEURONS["ReLU"])
    layers = dict(neurons.named_neurons(model))
    assert len(layers) == 19
    assert (
        sum(lbq.cost.read_connectivity(model, torch.zeros(1, 3, 32, 32)).neurons.values())
        == 1_507_328
    )
    assert sum(p.numel() for p in reference.parameters()) == 17_289_866
    own = {name for name, _ in model.named_parameters()} - set(dict(reference.named_parameters()))
    assert len(own) == 2 * 19  # a step and a tail for each spiking layer
    assert (
        sum(p.numel() for p in lbq.resnet19(11, neuron=NEURONS["ReLU"]).parameters()) == 12_630_539
    )


def test_an_ann_is_the_network_that_torch_would_build():
    """The ReLU form at T=1 against the same computation written with plain functions."""
    model = lbq.resnet20(10, timesteps=1, neuron=NEURONS["ReLU"], width=1 / 8).eval().double()
    images = inputs_for("cifar", (3, 32, 32)).double()

    def conv_norm(pair, x):
        conv, norm = pair
        return norm(conv(x))

    x = conv_norm(model.stem[1:3], images).relu()
    for stage in model.stages:
        for block in stage:
            y = conv_norm(block.synapse2, conv_norm(block.synapse1, x).relu())
            shortcut = (
                x if isinstance(block.shortcut, nn.Identity) else conv_norm(block.shortcut, x)
            )
            x = (y + shortcut).relu()
    expected = model.classifier[0][-1](x.mean((2, 3)))
    torch.testing.assert_close(model(images), expected, rtol=1e-12, atol=1e-12)


def test_logits_are_the_mean_over_time():
    model = lbq.resnet20(10, width=1 / 16, timesteps=4).eval()
    images = inputs_for("cifar", (3, 16, 16))
    over_time = model.logits_over_time(images)
    assert over_time.shape == (4, 3, 10)
    torch.testing.assert_close(model(images), over_time.mean(0))


def test_a_still_image_passes_the_stem_once():
    model, calls = lbq.resnet20(10, width=1 / 16, timesteps=4), []
    model.stem[1].register_forward_hook(lambda module, args, output: calls.append(output.shape))
    model(inputs_for("cifar", (3, 16, 16)))
    assert calls == [(3, 8, 16, 16)]


def test_width_scales_channels_and_keeps_the_shape():
    scaled = lbq.resnet19.shape.scaled(0.25)
    assert scaled == ResNetShape(
        blocks=(3, 3, 2), channels=(32, 64, 128), stem_channels=16, hidden=64
    )
    assert scaled.scaled(1e-9).channels == (1, 1, 1)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ParameterError, "width must be positive", lambda: lbq.resnet20(10, width=0.0)),
        (ParameterError, 'form must be "cifar"', lambda: lbq.resnet20(10, form="video")),
        (ParameterError, "block must be one of basic, sew", lambda: lbq.resnet20(10, block="x")),
        (TimeError, "at least one timestep, got timesteps", lambda: lbq.resnet20(10, timesteps=0)),
        (ShapeError, r'static images, \[B, C, H, W\], got shape.*form="events"',
         lambda: lbq.resnet20(10, width=1 / 16)(torch.zeros(3, 8, 8))),
        (ShapeError, r"takes frames.*got shape \(2, 2, 16, 16\)",
         lambda: lbq.resnet19(10, width=1 / 16)(torch.zeros(2, 2, 16, 16))),
        (TimeError, "built for 2 timesteps, got 5 frames",
         lambda: lbq.resnet19(10, width=1 / 16)(torch.zeros(5, 1, 2, 16, 16))),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_the_default_neuron_is_lbq_with_the_given_level():
    for _, neuron in named_neurons(lbq.resnet20(10, width=1 / 16, max_level=10)):
        assert isinstance(neuron, lbq.BurstLIF)
        assert neuron.max_level == 10
        assert isinstance(neuron.step, lbq.LearnedStep)


def test_each_name_has_the_form_it_has_in_the_paper():
    for build, form, _ in BUILDERS.values():
        assert build.form == form
