"""What the usual rule, rate times FLOPs, says beside exact counts."""

import pytest
import torch
from torch import nn
from wired import Wired

import lbq
from lbq.errors import ParameterError
from lbq.time import OverTime


def frames(*shape):
    torch.manual_seed(0)
    return 3 * torch.rand(2, 4, *shape)


def levels_of(model, x):
    with lbq.record_levels(model) as levels, torch.no_grad():
        model(x)
    return {name: found[0].double() for name, found in levels.items()}


def test_a_chain_is_priced_by_the_mean_level_of_what_enters():
    model = nn.Sequential(
        lbq.BurstLIF(step=0.5), OverTime(nn.MaxPool2d(2), nn.Conv2d(3, 5, 3, padding=1))
    ).eval()
    x = frames(3, 8, 6)
    counts = lbq.count_ops(model, x)
    pooled = nn.functional.max_pool2d(levels_of(model, x)["0"].flatten(0, 1), 2)
    macs = 2 * 4 * 5 * 4 * 3 * 27  # timesteps and images; padding included
    assert counts.rate_estimate().acs == pytest.approx(pooled.mean().item() * macs)
    active = (pooled > 0).double().mean().item()
    assert counts.rate_estimate("active").acs == pytest.approx(active * macs)
    assert counts.rate_estimate().acs > counts.total().unary_acs  # padding has no levels


def test_concatenated_and_averaged_layers_have_their_share_of_the_synapse():
    neurons = {"a": lbq.BurstLIF(step=0.3), "b": lbq.BurstLIF(step=0.9)}
    model = Wired(
        lambda m, x: m.out(torch.cat([m.a(x), m.b(x[:, :, :1])], dim=2).mean((-2, -1))),
        **neurons,
        out=nn.Linear(4, 7),
    )
    x = frames(3, 5, 5)
    levels, counts = levels_of(model, x), lbq.count_ops(model, x)
    expected = sum(levels[name].mean().item() * size * 7 for name, size in (("a", 3), ("b", 1)))
    assert counts.rate_estimate().acs == pytest.approx(2 * 4 * expected)


def test_products_are_priced_by_the_rates_of_operands_that_are_levels():
    names = ("q", "k", "v")
    neurons = {name: lbq.BurstLIF(step=0.2 * (n + 1)) for n, name in enumerate(names)}

    def attend(m, x):
        q, k, v = (getattr(m, name)(x) for name in names)
        return q @ (k.transpose(-2, -1) @ v)

    model = Wired(attend, **neurons)
    x = frames(6, 3)  # six tokens of three features
    levels, counts = levels_of(model, x), lbq.count_ops(model, x, batch_axis=1)
    q, k, v = (levels[name].mean().item() for name in names)
    expected = 8 * (6 * 9 * k * v + 6 * 9 * q)
    # rates are means over all timesteps of what was counted timestep by timestep
    per_step = sum(
        4 * 54 * (levels["k"][t].mean() * levels["v"][t].mean() + levels["q"][t].mean()).item()
        for t in range(2)
    )
    assert counts.rate_estimate().products == pytest.approx(per_step)
    assert per_step == pytest.approx(expected, rel=0.2)


def test_rates_are_known_by_name():
    model = nn.Sequential(lbq.BurstLIF(), nn.Linear(3, 2))
    with pytest.raises(ParameterError, match='"levels" or "active"'):
        lbq.count_ops(model, frames(3)).rate_estimate("mean")
