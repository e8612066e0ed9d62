"""E-SpikeFormer and Max-Former against the published figures and an independent reference."""

import pytest
import torch
from spikeformer_reference import Reference
from torch import nn

import lbq
from lbq.errors import ParameterError
from lbq.models import (
    RepConv,
    SpikeDrivenAttention,
    maxformer,
    spikeformer_5m,
    spikeformer_10m,
    spikeformer_19m,
)
from lbq.models.spikeformer_blocks import multiply_three
from lbq.neurons import HardResetLIF, IntegerLIF


def size_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def woken(model, images):
    """Give batch norms statistics, gains and offsets under which every neuron emits."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.uniform_(module.bias, 0.2, 1.5)
    model.train()
    with torch.no_grad():
        model(images)
    return model.eval()


@pytest.mark.parametrize(
    ("network", "parameters"),
    [(spikeformer_5m, 5_105_608), (spikeformer_10m, 10_023_112), (spikeformer_19m, 18_987_504)],
)
def test_networks_have_the_published_number_of_parameters(network, parameters):
    with torch.device("meta"):
        assert size_of(network(1000)) == parameters


@pytest.mark.parametrize(
    ("channels", "parameters"), [(384, 16_237_240), (512, 28_653_480), (768, 63_992_200)]
)
def test_max_former_has_the_published_number_of_parameters(channels, parameters):
    with torch.device("meta"):
        assert size_of(maxformer(1000, channels=channels)) == parameters


@pytest.mark.parametrize(
    ("form", "side", "strides"), [("cifar", 32, (1, 2, 2, 1, 1)), ("imagenet", 64, (2, 2, 2, 2, 1))]
)
def test_a_forward_equals_the_reference(form, side, strides):
    images = torch.randn(3, 3, side, side)
    blocks = (1, 1, 2, 2, 1)
    model = spikeformer_5m(10, width=0.5, blocks=blocks, form=form).double()
    model = woken(model, images.double())
    reference = Reference(model.state_dict(), strides=strides, blocks=blocks, heads=8)
    with lbq.record_levels(model) as levels, torch.no_grad():
        answers = model(images.double())
    expected = reference(images)
    assert torch.allclose(answers, expected, rtol=1e-9, atol=1e-9)
    assert levels.keys() == reference.levels.keys()
    for name, (found,) in levels.items():
        assert torch.equal(found[0].double(), reference.levels[name])
        assert found.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_published_neuron_is_exact_at_every_tie(dtype):
    ties = torch.tensor([0.5, 1.5, 2.5, 3.5], dtype=dtype)
    infinity = torch.full_like(ties, torch.inf)
    around = torch.cat([torch.nextafter(ties, -infinity), ties, torch.nextafter(ties, infinity)])
    neuron = IntegerLIF(4, decay=0.0, is_normalised=True).to(dtype)
    assert (4 * neuron(around.reshape(1, 1, -1))).flatten().tolist() == [
        *(0, 1, 2, 3),
        *(0, 2, 2, 4),
        *(1, 2, 3, 4),
    ]
    model = nn.Sequential(lbq.RepeatOverTime(1), neuron, nn.Linear(12, 2), lbq.MeanOverTime())
    lowered = lbq.lower(model.to(dtype).eval(), around.reshape(1, -1))
    levels = []
    lbq.run_network(lowered, around.reshape(1, -1), watch=lambda *seen: levels.append(seen[2]))
    (level,) = levels
    assert level.flatten().tolist() == [0, 1, 2, 3, 0, 2, 2, 4, 1, 2, 3, 4]


def test_the_binary_neuron_is_that_of_the_field():
    """V = V + (I - V) / 2, a spike at V >= 1 sets V to 0; the membrane here is twice that."""
    torch.manual_seed(0)
    currents = 4 * torch.randn(6, 2, 50, dtype=torch.float64)
    membrane, spikes = torch.zeros(2, 50, dtype=torch.float64), []
    for current in currents:
        membrane = membrane + (current - membrane) / 2
        spikes.append((membrane >= 1).double())
        membrane = membrane * (1 - spikes[-1])
    assert torch.equal(HardResetLIF().double()(currents), torch.stack(spikes))


NETWORKS = {
    "published": lambda: spikeformer_5m(10, width=0.25, blocks=(1, 1, 1, 1, 1), form="cifar"),
    "bursts": lambda: spikeformer_5m(
        10,
        width=0.25,
        blocks=(1, 1, 1, 1, 1),
        form="cifar",
        timesteps=2,
        neuron=lambda channels: lbq.BurstLIF(4, step=0.5),
    ),
    "max-former": lambda: maxformer(10, channels=64, blocks=(1, 1, 1), timesteps=2, form="cifar"),
    "max-former, bursts": lambda: maxformer(
        10,
        channels=64,
        blocks=(1, 1, 1),
        timesteps=2,
        form="cifar",
        neuron=lambda channels: lbq.BurstLIF(4, step=0.5),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_integers_are_the_same_on_every_backend_and_products_are_counted(name):
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32)
    model = woken(NETWORKS[name](), images)
    net = lbq.to_fixed_point(lbq.lower(model, images[:1]), pixels=None)
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    dense = lbq.run_network(net, pixels, backend="dense")
    assert len(dense.unique()) > 1
    for backend in ("unary", "planes", "native"):
        assert torch.equal(lbq.run_network(net, pixels, backend=backend), dense)
    counts = lbq.count_ops(model, images)
    assert not counts.untracked
    assert not counts.uncounted
    assert counts.total_products().unary > 0


def test_networks_train():
    torch.manual_seed(0)
    model = NETWORKS["bursts"]()
    images, target = torch.randn(8, 3, 32, 32), torch.arange(8)
    optimizer = torch.optim.AdamW(lbq.param_groups(model, weight_decay=0.05), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_three_matrices_are_multiplied_in_the_cheaper_order():
    few, many = torch.rand(2, 3).double(), torch.rand(3, 40).double()
    tall = torch.rand(40, 30).double()
    assert torch.allclose(multiply_three(few, many, tall), few @ many @ tall)
    wide = torch.rand(50, 3).double()
    assert torch.allclose(multiply_three(wide, many, tall), wide @ (many @ tall))


def test_repconv_folds_into_one_convolution():
    torch.manual_seed(0)
    rep = RepConv(3, 5)
    for _ in range(3):
        rep(2 * torch.randn(8, 3, 7, 6))
    rep = rep.double().eval()
    levels = torch.randint(0, 5, (4, 3, 7, 6)).double()
    assert torch.allclose(rep(levels), rep.folded()(levels), atol=1e-12)
    conv = rep.folded()
    model = nn.Sequential(
        lbq.BurstLIF(4), lbq.OverTime(rep), lbq.BurstLIF(4), lbq.OverTime(nn.Flatten()),
        nn.Linear(5 * 42, 2), lbq.MeanOverTime(),
    ).double().eval()  # fmt: skip
    lowered = lbq.lower(model, levels[None, :1])
    (folded,) = [node for node in lowered.operators.values() if hasattr(node, "kernel")] or [
        lowered.operators["1.0.project"]
    ]
    assert torch.allclose(folded.weight, conv.weight * model[0].step())


def test_repconv_trains_on_statistics_without_the_border():
    torch.manual_seed(0)
    rep, inputs = RepConv(2, 2), 1 + torch.rand(4, 2, 5, 5)
    rep(inputs)
    expected = 0.1 * rep.expand(inputs).mean((0, 2, 3))
    assert torch.allclose(rep.expand_norm.running_mean, expected, atol=1e-6)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ParameterError, match="10 channels cannot be divided among 8 heads"):
        SpikeDrivenAttention(10, neuron=lambda channels: lbq.BurstLIF())
    with pytest.raises(ParameterError, match="width must be positive"):
        spikeformer_5m(10, width=0)
    with pytest.raises(ParameterError, match="form must be one of"):
        spikeformer_5m(10, form="events")
    with pytest.raises(ParameterError, match="form must be"):
        maxformer(10, form="events")
    with pytest.raises(ParameterError, match="multiple of"):
        maxformer(10, channels=66)
