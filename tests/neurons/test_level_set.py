"""Levels that are powers of two: each costs one accumulation."""

import pytest
import torch
from torch import nn

import lbq
from lbq.errors import ParameterError


def test_levels_between_are_rounded_down_and_the_step_keeps_its_gradient():
    neuron = lbq.BurstLIF(8, step=lbq.LearnedStep(0.5), level_set="powers")
    currents = (0.5 * torch.arange(10.0) + 0.2).reshape(1, 1, 10).requires_grad_()
    with lbq.record_levels(neuron) as levels:
        bursts = neuron(currents)
    assert levels[""][0].flatten().tolist() == [0, 1, 2, 2, 4, 4, 4, 4, 8, 8]
    assert torch.equal(bursts.detach(), 0.5 * levels[""][0])
    bursts.sum().backward()
    assert neuron.step.raw_step.grad.abs() > 0
    plain = lbq.BurstLIF(8, step=0.5)
    again = currents.detach().requires_grad_()
    plain(again).sum().backward()
    assert torch.equal(currents.grad, again.grad)


@pytest.mark.parametrize("channels", [None, 6])
def test_they_are_lowered_exactly_and_cost_one_accumulation_each(channels):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 6), lbq.RepeatOverTime(3),
        lbq.BurstLIF(4, step=lbq.LearnedStep(0.3, channels=channels), level_set="powers"),
        nn.Linear(6, 4), lbq.MeanOverTime(),
    ).double().eval()  # fmt: skip
    x = 3 * torch.randn(64, 8, dtype=torch.float64)
    net = lbq.lower(model, x[:1])
    with lbq.record_levels(model) as expected, torch.no_grad():
        model(x)
    found = []
    lbq.run_network(net, x, watch=lambda layer, t, level: found.append(level))
    assert torch.equal(expected["2"][0].int(), torch.stack(found).int())
    assert set(expected["2"][0].unique().tolist()) == {0, 1, 2, 4}
    total = lbq.count_ops(model, x).total()
    assert total.bit_sparse_acs == total.unit_event_acs < total.unary_acs


def test_other_largest_levels_are_refused():
    with pytest.raises(ParameterError, match="power of two"):
        lbq.BurstLIF(5, level_set="powers")
