import pytest
import torch
from torch import nn

import lbq
from lbq.time import MeanOverTime, OverTime, RepeatOverTime


def test_folding_applies_the_modules_to_every_instant():
    conv = nn.Conv2d(2, 3, 3, padding=1)
    sequence = torch.randn(4, 5, 2, 6, 6)
    by_instant = torch.stack([conv(instant) for instant in sequence])
    torch.testing.assert_close(OverTime(conv)(sequence), by_instant)


def test_batch_norm_sees_all_timesteps_at_once():
    sequence = torch.randn(4, 5, 2, 6, 6) + torch.arange(4).reshape(4, 1, 1, 1, 1)
    norm, oracle = OverTime(nn.BatchNorm2d(2)), nn.BatchNorm2d(2)
    torch.testing.assert_close(norm(sequence).flatten(0, 1), oracle(sequence.flatten(0, 1)))
    torch.testing.assert_close(norm[0].running_mean, oracle.running_mean)


def test_a_fold_keeps_channels_last():
    sequence = torch.randn(20, 2, 6, 6).to(memory_format=torch.channels_last).unflatten(0, (4, 5))
    conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    out = OverTime(conv)(sequence).flatten(0, 1)
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_repeating_copies_nothing():
    current = torch.randn(2, 3, 4, 4)
    repeated = RepeatOverTime(5)(current)
    assert repeated.shape == (5, 2, 3, 4, 4)
    assert repeated.data_ptr() == current.data_ptr()
    torch.testing.assert_close(MeanOverTime()(repeated), current)


def test_the_gradient_of_a_repeated_image_keeps_its_memory_order():
    image = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    weight = weight.unflatten(0, (3, 2))
    repeated = RepeatOverTime(3)(image)
    assert repeated.stride(0) == 0
    (grad,) = torch.autograd.grad(repeated, image, weight)
    assert grad.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(grad, weight.sum(0))


@pytest.mark.parametrize("shape", [(4,), (4, 7), (4, 3, 8), (4, 3, 8, 8), (4, 2, 3, 8, 8)])
def test_a_still_current_of_any_rank_is_repeated(shape):
    current = torch.randn(shape, requires_grad=True)
    repeated = RepeatOverTime(2)(current)
    assert repeated.shape == (2, *shape)
    assert torch.equal(repeated[0], current)
    assert torch.equal(repeated[1], current)
    (grad,) = torch.autograd.grad(repeated.sum(), current)
    assert torch.equal(grad, torch.full(shape, 2.0))


def test_features_are_repeated_before_a_neuron():
    network = nn.Sequential(nn.Linear(5, 6), RepeatOverTime(3), lbq.BurstLIF(step=0.1))
    inputs = torch.randn(4, 5)
    by_hand = network[2](torch.stack([network[0](inputs)] * 3))
    assert torch.equal(network(inputs), by_hand)
    model = nn.Sequential(*network, nn.Linear(6, 2), MeanOverTime()).eval()
    assert lbq.OpCounter(model, inputs[:1]).table().ann_macs() == 5 * 6 + 6 * 2
    torch.testing.assert_close(lbq.lower(model, inputs[:1])(inputs), model(inputs))
