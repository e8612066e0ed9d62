import math

import pytest
import torch
from torch import nn

import lbq
from lbq.errors import ParameterError, RecipeError
from lbq.neurons import neuron_parameters
from lbq.train.checkpoint import copy_tensors
from lbq.train.optim import (
    OptimConfig,
    Precision,
    ScheduleConfig,
    bf16_units,
    build_optimizer,
    learning_rate_factor,
    optimizer_tensors,
    param_groups,
    set_learning_rate,
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return lbq.resnet20(4, width=1 / 32)


def teach(model, optimizer, steps=3):
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()


def test_every_parameter_is_in_one_group_and_neurons_do_not_decay(model):
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.1, neuron_lr_scale=0.5))
    weights, norms, neurons = optimizer.param_groups
    assert all(p.dim() > 1 for p in weights["params"])
    assert all(p.dim() == 1 for p in norms["params"])
    assert {id(p) for p in neurons["params"]} == {id(p) for p in neuron_parameters(model)}
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.1, 0.0]
    set_learning_rate(optimizer, 0.2)
    assert [g["lr"] for g in optimizer.param_groups] == [0.2, 0.2, 0.1]


def test_norms_and_biases_can_be_left_out_of_decay(model):
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.1, decay_norms=False))
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0, 0.0]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_every_optimizer_of_torch_takes_the_groups_and_decays_no_neuron(model, kind):
    before = [p.detach().clone() for p in neuron_parameters(model)]
    optimizer = kind(param_groups(model, 0.5), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    weights = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
    optimizer.step()
    assert all(map(torch.equal, before, neuron_parameters(model)))
    assert not any(map(torch.equal, weights, optimizer.param_groups[0]["params"]))


def test_frozen_parameters_are_in_no_group_and_get_no_state(model):
    for parameter in model.stages[0].parameters():
        parameter.requires_grad_(False)
    free = [p for p in model.parameters() if p.requires_grad]
    groups = param_groups(model, 0.1)
    assert {id(p) for g in groups for p in g["params"]} == {id(p) for p in free}
    optimizer = build_optimizer(model, OptimConfig(kind="adamw", lr=0.01))
    assert {id(p) for p in optimizer.state} == {id(p) for p in free}
    names = {name.partition(":")[0] for name in optimizer_tensors(model, optimizer)}
    assert names == {name for name, p in model.named_parameters() if p.requires_grad}


def test_groups_without_parameters_are_left_out():
    only_weights = param_groups(nn.Linear(2, 2, bias=False), 0.1)
    assert [len(g["params"]) for g in only_weights] == [1]


@pytest.mark.parametrize("wrong", [{"weight_decay": -0.1}, {"neuron_lr_scale": math.nan}])
def test_negative_factors_of_groups_are_refused(model, wrong):
    with pytest.raises(ParameterError, match=r"must not be negative, got .*(-0\.1|nan)"):
        param_groups(model, **{"weight_decay": 0.1} | wrong)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_state_of_zeros_changes_no_step(kind):
    """The oracle is torch's optimizer, which makes its state at the first step."""
    results = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        model = lbq.resnet20(4, width=1 / 32)
        config = OptimConfig(kind=kind, lr=0.01, weight_decay=0.01)
        optimizer = build_optimizer(model, config)
        if not is_ours:
            optimizer.state.clear()
        teach(model, optimizer)
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_an_optimizer_continues_bit_for_bit_from_its_tensors(kind):
    config = OptimConfig(kind=kind, lr=0.01)
    torch.manual_seed(0)
    models = [lbq.resnet20(4, width=1 / 32) for _ in range(2)]
    optimizers = [build_optimizer(model, config) for model in models]
    teach(models[0], optimizers[0])
    copy_tensors(models[0].state_dict(), models[1].state_dict(), what="model")
    saved, fresh = (optimizer_tensors(m, o) for m, o in zip(models, optimizers, strict=True))
    copy_tensors(saved, fresh, what="optimizer")
    for model, optimizer in zip(models, optimizers, strict=True):
        teach(model, optimizer)
    one, other = (model.state_dict() for model in models)
    assert all(torch.equal(one[name], other[name]) for name in one)


def factor(schedule, step, epochs=10):
    return learning_rate_factor(schedule, step=step, steps_per_epoch=4, epochs=epochs)


def test_the_cosine_of_the_public_codes_moves_once_per_epoch():
    schedule = ScheduleConfig(moves="epoch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    for epoch in range(10):
        found = {factor(schedule, step) for step in range(4 * epoch, 4 * epoch + 4)}
        assert len(found) == 1
        assert found.pop() == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        oracle.step()


def test_the_warm_up_rises_and_the_cosine_falls_to_its_end():
    schedule = ScheduleConfig(warmup_epochs=2.0, warmup_factor=0.1, final_factor=0.01)
    factors = [factor(schedule, step) for step in range(41)]
    assert factors[0] == 0.1
    assert factors[4] == pytest.approx(0.55)
    assert factors[8] == pytest.approx(0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * 0.2)))
    assert factors[40] == pytest.approx(0.01)
    assert factors[8:] == sorted(factors[8:], reverse=True)


def test_no_epoch_of_a_warm_up_by_epochs_trains_at_rate_zero():
    schedule = ScheduleConfig(warmup_epochs=3.0, moves="epoch")
    factors = [factor(schedule, 4 * epoch + 3) for epoch in range(4)]
    assert factors[:3] == pytest.approx([0.25, 0.5, 0.75])
    assert factors[3] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.3)))
    named = ScheduleConfig(warmup_epochs=2.0, warmup_factor=0.1, moves="epoch")
    assert [factor(named, 4 * epoch) for epoch in range(2)] == pytest.approx([0.1, 0.55])


def test_nonsense_is_refused():
    for wrong in ({"lr": 0.0}, {"weight_decay": -1.0}, {"clip_norm": 0.0}):
        with pytest.raises(RecipeError):
            OptimConfig(**wrong)


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_products_run_in_the_precision_asked_for(kind, dtype):
    with Precision(kind, CPU).autocast():
        assert nn.Linear(4, 4)(torch.randn(2, 4)).dtype == dtype


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


@pytest.mark.parametrize(
    ("flags", "units"),
    [
        ("sse2 avx512f amx_bf16 avx512_bf16 amx_tile", ["amx_bf16", "avx512_bf16"]),
        ("sse2 avx512_bf16", ["avx512_bf16"]),
        ("sse2 avx2 avx512f avx512_bf16x", []),
    ],
)
def test_units_for_bf16_are_read_from_the_flags_of_the_processor(tmp_path, flags, units):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    assert bf16_units(tmp_path / "cpuinfo") == units
    assert bf16_units(tmp_path / "missing") == []
