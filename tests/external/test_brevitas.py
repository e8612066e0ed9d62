"""A trained network of Brevitas becomes a burst network: no level differs."""

import os

import pytest
import torch
from torch import nn

import lbq

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    pytest.importorskip("brevitas", reason="installed by .ci/external")

import brevitas.nn as quant
from brevitas.quant import Uint8ActPerTensorFixedPoint, Uint8ActPerTensorFloat

from lbq.adapters.brevitas import from_brevitas


class Net(nn.Module):
    """Convolutions, norms, a residual sum, pools; weights and activations quantised."""

    def __init__(self, bits, **options):
        super().__init__()
        self.conv1 = quant.QuantConv2d(3, 8, 3, padding=1, weight_bit_width=4, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.relu1 = quant.QuantReLU(bit_width=bits, **options)
        self.conv2 = quant.QuantConv2d(8, 8, 3, padding=1, weight_bit_width=4, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.relu2 = quant.QuantReLU(bit_width=bits, **options)
        self.pool = nn.MaxPool2d(2)
        self.conv3 = quant.QuantConv2d(8, 12, 3, weight_bit_width=4)  # a bias instead of a norm
        self.relu3 = quant.QuantReLU(bit_width=bits, **options)
        self.fc = quant.QuantLinear(12, 4, bias=True, weight_bit_width=4)

    def forward(self, x):
        x = self.relu1(self.norm1(self.conv1(x)))
        x = self.relu2(self.norm2(self.conv2(x)) + x)
        x = self.relu3(self.conv3(self.pool(x)))
        return self.fc(x.mean((2, 3)))


def draw(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 12, 12, generator=generator)
    return images, images.mean((2, 3)).abs().argmax(1)


def trained(bits=3, **options):
    torch.manual_seed(0)
    model, (images, target) = Net(bits, **options), draw(64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = None
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        before = before or loss.item()
    assert loss.item() < before
    return model.eval()


def their_levels(model, images):
    """Return the integers behind every QuantReLU, and the answer."""
    found, hooks = {}, []
    for path, module in model.named_modules():
        if isinstance(module, quant.QuantReLU):
            scale = module.act_quant.scale()
            hooks.append(
                module.register_forward_hook(
                    lambda m, a, out, p=path, s=scale: found.__setitem__(p, (out / s).round())
                )
            )
    with torch.no_grad():
        logits = model(images)
    for hook in hooks:
        hook.remove()
    return found, logits


def our_levels(model, images):
    found = {}
    with torch.no_grad(), lbq.watch_levels(model, lambda p, t, level: found.update({p: level})):
        return found, model(images)


def differing(a, b):
    assert set(a) == set(b) == {"relu1", "relu2", "relu3"}
    return sum(int((a[path] != b[path]).sum()) for path in a)


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [(1, torch.float32), (3, torch.float32), (3, torch.float64), (8, torch.float64)],
)
def test_no_level_differs_and_the_answers_agree(bits, dtype):
    model = trained(bits).to(dtype)
    images = draw(200, seed=1)[0].to(dtype)
    theirs, expected = their_levels(model, images)
    spiking = from_brevitas(model, images[:2])
    ours, logits = our_levels(spiking, images)
    assert sum(level.numel() for level in ours.values()) > 400_000
    assert max(int(level.max()) for level in ours.values()) == 2**bits - 1
    assert differing(ours, theirs) == 0
    torch.testing.assert_close(logits, expected)


def test_eight_bits_in_float32_differ_only_where_a_current_meets_its_threshold():
    # 256 levels leave 2**-16 of a step to a float32: the half step in the bias rounds elsewhere
    model, images = trained(8), draw(200, seed=1)[0]
    theirs = their_levels(model, images)[0]
    ours = our_levels(from_brevitas(model, images[:2]), images)[0]
    assert differing(ours, theirs) < 1e-4 * sum(level.numel() for level in ours.values())
    assert max((ours[path] - theirs[path]).abs().max() for path in ours) <= 1


def test_without_the_half_step_levels_would_differ():
    model, images = trained(), draw(20, seed=1)[0]
    spiking = from_brevitas(model, images[:2])
    spiking.norm1.bias.data -= spiking.relu1.step() / 2
    assert differing(our_levels(spiking, images)[0], their_levels(model, images)[0]) > 1000


def test_flooring_activations_need_no_half_step():
    class Floor(Uint8ActPerTensorFloat):
        float_to_int_impl_type = "floor"

    model, images = trained(act_quant=Floor).double(), draw(100, seed=1)[0].double()
    spiking = from_brevitas(model, images[:2])
    assert torch.equal(spiking.norm1.bias, model.norm1.bias)
    assert differing(our_levels(spiking, images)[0], their_levels(model, images)[0]) == 0


def test_it_is_lowered_to_integers_and_trained_further():
    model, images = trained().double(), draw(50, seed=1)[0].double()
    spiking = from_brevitas(model, images[:2], learn_steps=True)
    expected = model(images)
    net = lbq.lower(spiking, images[:1])
    torch.testing.assert_close(net(images), expected)
    spiking.train()(images).square().mean().backward()
    assert spiking.relu1.step.raw_step.grad.any()


def test_what_has_no_counterpart_is_named():
    images = draw(2)[0]
    with pytest.raises(lbq.LBQError, match="0 is a QuantIdentity"):
        from_brevitas(nn.Sequential(quant.QuantIdentity(), quant.QuantReLU()), images)
    with pytest.raises(lbq.LBQError, match="no bias of its own lies before 0"):
        from_brevitas(nn.Sequential(quant.QuantReLU()), images)
    with pytest.warns(UserWarning, match="power of two") as said:
        from_brevitas(trained(act_quant=Uint8ActPerTensorFixedPoint), images)
    assert len(said) == 3
