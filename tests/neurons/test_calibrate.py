import pytest
import torch
from torch import nn

import lbq
from lbq.errors import ParameterError
from lbq.neurons import OriginalTernaryLIF


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 64), lbq.BurstLIF(), nn.Linear(64, 32), lbq.BurstLIF(step=lbq.FixedStep(9.0))
    )


def test_the_percentile_of_the_membrane_reaches_the_largest_level():
    model, saturated = network(), {}
    inputs = torch.randn(1, 500, 5)
    lbq.calibrate_steps(model, [inputs], percentile=90.0)

    def watch(layer, t, level):
        saturated[layer] = (level == 5).float().mean().item()

    with lbq.watch_levels(model, watch):
        model(inputs)
    assert 0.095 < saturated["1"] < 0.105  # a tenth of the membranes lies beyond
    assert 0.095 < saturated["3"] < 0.105


def test_several_batches_are_averaged():
    batches = [torch.randn(2, 50, 5) * scale for scale in (1.0, 3.0)]
    each = []
    for batch in batches:
        model = network()
        each.append(lbq.calibrate_steps(model, [batch])["1"])
    model = network()
    both = lbq.calibrate_steps(model, batches)["1"]
    torch.testing.assert_close(both, torch.stack(each).mean(0))
    torch.testing.assert_close(model[1].step().detach(), both)


def test_a_step_per_channel_follows_its_channel():
    neuron = lbq.BurstLIF(step=lbq.LearnedStep(channels=3))
    scale = torch.tensor([0.1, 1.0, 10.0])
    steps = lbq.calibrate_steps(neuron, [torch.randn(2, 4000, 3) * scale])[""]
    torch.testing.assert_close(steps / steps[1], scale, rtol=0.15, atol=0)


def test_an_amplitude_is_left_alone():
    neuron = OriginalTernaryLIF()
    assert lbq.calibrate_steps(
        nn.Sequential(neuron, lbq.BurstLIF()), [torch.randn(2, 3, 4)]
    ).keys() == {"1"}
    assert neuron.step().item() == pytest.approx(1.0)


def test_negative_membranes_do_not_count_where_levels_are_not_negative():
    currents = torch.cat(
        [torch.full((1, 90, 1), -50.0), torch.linspace(0, 2, 10).reshape(1, 10, 1)], 1
    )
    neuron = lbq.BurstLIF()
    lbq.calibrate_steps(neuron, [currents], percentile=100.0)
    assert neuron.step().item() == pytest.approx(2 / 5, rel=1e-5)


def test_a_silent_layer_keeps_a_positive_step():
    neuron = lbq.BurstLIF()
    lbq.calibrate_steps(neuron, [torch.zeros(2, 3, 4)])
    assert neuron.step().item() > 0


def test_no_batch_and_wrong_percentiles_are_refused():
    with pytest.raises(ParameterError, match="at least one batch"):
        lbq.calibrate_steps(network(), [])
    with pytest.raises(ParameterError, match="percentile"):
        lbq.calibrate_steps(network(), [], percentile=0.0)
