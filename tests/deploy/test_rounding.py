import pytest
import torch

import lbq
from lbq.deploy.fixed_point import best_unit, decay_as_fraction, mean_inputs, rounded
from lbq.deploy.lower import lower


@pytest.mark.parametrize(("decay", "expected"), [(0.5, (1, 1)), (0.0, (0, 0)), (1.0, (1, 0))])
def test_simple_decays_are_exact(decay, expected):
    assert decay_as_fraction(decay, max_shift=8) == expected


def test_other_decays_are_near():
    for decay in torch.rand(100).tolist():
        multiplier, shift = decay_as_fraction(decay, max_shift=8)
        assert abs(multiplier / 2**shift - decay) <= 2**-9


def test_integers_stay_within_their_bits():
    weight = torch.randn(4, 50).double() * 100
    for bits, largest in ((4, 7), (8, 127), (16, 32767)):
        integers = rounded(weight, torch.full((4,), 0.01).double(), bits=bits)
        assert integers.abs().max() == largest if bits < 16 else integers.abs().max() <= largest


def test_the_best_unit_loses_no_more_than_the_widest():
    weight = torch.randn(8, 200).double()
    widest = weight.abs().amax(1) / 7
    for unit in (best_unit(weight, bits=4),):
        lost = (rounded(weight, unit, bits=4) * unit.unsqueeze(1) - weight).square().sum()
        plain = (rounded(weight, widest, bits=4) * widest.unsqueeze(1) - weight).square().sum()
        assert lost < plain


def test_mean_inputs_are_those_of_the_levels():
    model = lbq.resnet20(10, width=1 / 16).double().eval()
    images, sums = torch.randn(4, 3, 16, 16).double(), []
    net = lower(model, images)
    means = mean_inputs(net, images)
    with (
        torch.no_grad(),
        lbq.watch_levels(
            net, lambda layer, t, level: layer == "stem_neuron" and sums.append(level)
        ),
    ):
        net(images)
    expected = torch.stack(sums).double().mean((0, 1, 3, 4))
    torch.testing.assert_close(means["stages.0.0.synapse1.0"], expected)
    assert "stem.1" not in means
