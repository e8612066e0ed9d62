import math

import pytest
import torch
from torch import nn

import lbq
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


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_no_level_flips_because_of_the_precision_of_a_neuron(kind):
    """The oracle is the same neuron in float32 on the same, already rounded currents."""
    generator = torch.Generator().manual_seed(2)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    currents = (2 * torch.randn(4, 8, 16, 8, 8, generator=generator)).to(dtype)
    neuron = lbq.BurstLIF(step=lbq.LearnedStep(0.3))
    found: dict[str, list[torch.Tensor]] = {"half": [], "full": []}
    with torch.no_grad():
        with (
            Precision(kind, CPU).autocast(),
            lbq.watch_levels(neuron, lambda layer, t, level: found["half"].append(level)),
        ):
            neuron(currents)
        with lbq.watch_levels(neuron, lambda layer, t, level: found["full"].append(level)):
            neuron(currents.float())
    assert all(torch.equal(*levels) for levels in zip(found["half"], found["full"], strict=True))
    assert torch.stack(found["full"]).unique().tolist() == [0, 1, 2, 3, 4, 5]
