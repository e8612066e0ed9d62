import math

import pytest
import torch
from torch import nn

from lbq.train.precision import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_products_run_in_the_precision_asked_for(kind, dtype):
    with Precision(kind, CPU).autocast():
        assert nn.Linear(4, 4)(torch.randn(2, 4)).dtype == dtype


def test_float16_scales_the_loss_and_shrinks_the_scale_when_a_gradient_overflows():
    precision, layer = Precision("fp16", CPU), nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scale = precision.state()["scale"]
    precision.scaled(layer(torch.ones(1, 1)).sum()).backward()
    assert layer.weight.grad.item() == scale
    precision.unscale_(optimizer)
    assert layer.weight.grad.item() == 1
    precision.step(optimizer)
    layer.weight.grad = torch.full_like(layer.weight, math.inf)
    precision.unscale_(optimizer)
    precision.skip()
    assert precision.skips_overflows
    assert precision.state()["scale"] == scale / 2


def test_the_scale_survives_a_checkpoint():
    before, after = Precision("fp16", CPU), Precision("fp16", CPU)
    state = before.state() | {"scale": 1024.0, "_growth_tracker": 7}
    after.restore(state)
    assert after.state() == state


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_other_precisions_have_no_scale(kind):
    precision = Precision(kind, CPU)
    loss = torch.tensor(3.0)
    assert precision.scaled(loss) is loss
    assert precision.state() == {}
    assert not precision.skips_overflows
    precision.restore({})
