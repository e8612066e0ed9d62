"""Fused and unfused networks: the same parameters, statistics, gradients and levels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernels.isas import require_native
from torch import nn

import lbq
from lbq.kernels.norm_scan import NormedBurstScan
from lbq.models import BasicBlock, fused_block

require_native()


def twins(**arguments):
    """A fused network and an unfused one with the same values."""
    torch.manual_seed(0)
    built = [
        lbq.resnet20(10, timesteps=2, width=1 / 16, fused=fused, **arguments).to(
            memory_format=torch.channels_last
        )
        for fused in (True, False)
    ]
    built[1].load_state_dict(built[0].state_dict())
    return built


def images(batch=6, seed=0):
    drawn = torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    return drawn.contiguous(memory_format=torch.channels_last)


@pytest.fixture
def fused_calls(monkeypatch):
    """How often norm and neuron ran as one."""
    calls = []
    apply = NormedBurstScan.apply

    def count(*arguments):
        calls.append(arguments)
        return apply(*arguments)

    monkeypatch.setattr(fused_block.NormedBurstScan, "apply", count)
    return calls


def train(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for seed in range(steps):
        loss = model(images(seed=seed)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def assert_same_state(a, b, **tolerance):
    state, other = a.state_dict(), b.state_dict()
    assert list(state) == list(other)
    for name, value in state.items():
        torch.testing.assert_close(
            value, other[name], **tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def change_norms(model, change):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            change(module)


def set_momentum(momentum):
    return lambda norm: setattr(norm, "momentum", momentum)


def untrack(norm):
    norm.track_running_stats = False
    norm.running_mean = norm.running_var = norm.num_batches_tracked = None


@pytest.mark.parametrize("block", ["basic", "sew", "ms"])
def test_three_training_steps_end_in_the_same_state(block, fused_calls):
    fused, unfused = twins(block=block)
    torch.testing.assert_close(train(fused), train(unfused), rtol=1e-4, atol=1e-6)
    assert len(fused_calls) == 3 * (9 if block == "ms" else 18)
    assert_same_state(fused, unfused, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [set_momentum(0.3), set_momentum(None), untrack, lambda norm: norm.eval()],
    ids=["momentum", "cumulative average", "no running statistics", "frozen"],
)
def test_batch_norms_settings_mean_what_they_mean(change, fused_calls):
    fused, unfused = twins()
    for model in (fused, unfused):
        change_norms(model, change)
    torch.testing.assert_close(train(fused), train(unfused), rtol=1e-4, atol=1e-6)
    assert len(fused_calls) == 54
    assert_same_state(fused, unfused, rtol=1e-3, atol=1e-4)


def test_a_network_without_affine_norms_has_no_weights_to_learn(fused_calls):
    blocks = []
    for fused in (True, False):
        torch.manual_seed(0)
        block = BasicBlock(4, 4, stride=1, neuron=lambda channels: lbq.BurstLIF(), fused=fused)
        for synapse in (block.synapse1, block.synapse2):
            synapse[1] = nn.BatchNorm2d(4, affine=False)
        blocks.append(block.to(memory_format=torch.channels_last))
    x = torch.randn(6, 4, 8, 8).contiguous(memory_format=torch.channels_last).unflatten(0, (2, 3))
    for block in blocks:
        block(x).square().mean().backward()
    assert len(fused_calls) == 2
    for a, b in zip(blocks[0].parameters(), blocks[1].parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def test_eval_uses_running_statistics_and_leaves_them_alone(fused_calls):
    fused, unfused = twins()
    train(fused), train(unfused)
    unfused.load_state_dict(fused.state_dict())
    before = {name: value.clone() for name, value in fused.state_dict().items()}
    fused.eval(), unfused.eval()
    with torch.no_grad():
        torch.testing.assert_close(fused(images()), unfused(images()), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in fused.state_dict().items())


def test_watching_levels_changes_no_number_and_shows_the_same_levels(fused_calls):
    fused, unfused = (model.eval() for model in twins())
    seen = {}, {}
    with torch.no_grad():
        alone = fused(images())
        for model, levels in zip((fused, unfused), seen, strict=True):
            show = lambda layer, t, level, to=levels: to.update({(layer, t): level.clone()})  # noqa: E731
            with lbq.watch_levels(model, show):
                watched = model(images())
            if model is fused:
                assert torch.equal(watched, alone)
                assert len(fused_calls) == 36
    assert seen[0].keys() == seen[1].keys()
    flipped = sum(int((seen[0][key] != level).sum()) for key, level in seen[1].items())
    assert flipped <= 1e-5 * sum(level.numel() for level in seen[1].values())


def test_a_tally_counts_a_fused_network_like_an_unfused_one():
    tables = []
    for model in twins():
        counter = lbq.OpCounter(model.eval(), images(1))
        with torch.no_grad(), lbq.watch_levels(model, counter):
            model(images())
        tables.append(counter.table())
    found, expected = (table.total() for table in tables)
    assert found.unary_acs == pytest.approx(expected.unary_acs, rel=1e-5)
    assert tables[0].synapses == tables[1].synapses
    assert list(tables[0].by_edge()) == list(tables[1].by_edge())


def test_whoever_looks_between_the_modules_gets_the_modules(fused_calls):
    fused, _ = twins()
    with lbq.check_currents_finite(fused):
        fused(images())
    assert not fused_calls
    handle = fused.stages[0][0].synapse1[1].register_forward_hook(lambda *seen: None)
    fused(images())
    assert len(fused_calls) == 17
    handle.remove()
    fused(images())
    assert len(fused_calls) == 17 + 18


@pytest.mark.parametrize(
    "register", ["register_full_backward_hook", "register_full_backward_pre_hook"]
)
@pytest.mark.parametrize("path", ["synapse1", "synapse1.1", "neuron1", "neuron1.receive"])
def test_backward_hooks_between_the_modules_are_called(path, register, fused_calls):
    fused, _ = twins()
    called = []
    module = fused.stages[0][0].get_submodule(path)
    getattr(module, register)(lambda *seen: called.append(path))
    fused(images()).sum().backward()
    assert called == [path]
    assert len(fused_calls) == 17


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
    ],
)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # steps have no inputs
def test_hooks_of_all_modules_are_called_for_those_inside(register, fused_calls):
    fused, _ = twins()
    called = []
    handle = register(lambda module, *seen: called.append(module))
    try:
        fused(images()).sum().backward()
    finally:
        handle.remove()
    assert fused.stages[0][0].synapse1[1] in called
    assert fused.stages[0][0].neuron1 in called
    assert not fused_calls


@pytest.mark.parametrize("kind", ["channels first", "relu", "per timestep", "synchronised"])
def test_what_cannot_be_fused_runs_module_by_module(kind, fused_calls):
    neuron = (lambda channels: nn.ReLU()) if kind == "relu" else None
    fused = lbq.resnet20(10, timesteps=2, width=1 / 16, fused=True, neuron=neuron)
    x = images()
    if kind == "channels first":
        x = x.contiguous()
    else:
        fused = fused.to(memory_format=torch.channels_last)
    if kind == "synchronised":
        fused = nn.SyncBatchNorm.convert_sync_batchnorm(fused).eval()
    if kind == "per timestep":
        fused = lbq.resnet20(10, timesteps=33, width=1 / 16, fused=True)
        fused = fused.to(memory_format=torch.channels_last)
        x = images(1)[..., :8, :8]
    fused(x)
    assert not fused_calls


class BlockTracer(torch.fx.Tracer):
    """Sees a neuron as one node."""

    def is_leaf_module(self, module, path):
        return isinstance(module, lbq.BurstLIF) or super().is_leaf_module(module, path)


def test_tracers_see_the_modules_and_get_the_same_answers():
    fused, unfused = (model.eval() for model in twins())
    program = torch.export.export(fused, (images(),))
    torch.testing.assert_close(program.module()(images()), unfused(images()), rtol=1e-4, atol=1e-5)
    graph = BlockTracer().trace(fused.stages[0][0])
    assert {"synapse1.0", "synapse1.1", "neuron1"} <= {node.target for node in graph.nodes}


DDP = """
import sys, torch, torch.distributed as dist, lbq
dist.init_process_group("gloo")
rank = dist.get_rank()
found = []
for fused in (True, False):
    torch.manual_seed(0)
    model = lbq.resnet20(10, timesteps=2, width=1 / 16, fused=fused)
    model = model.to(memory_format=torch.channels_last)
    ddp = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = ddp(x.contiguous(memory_format=torch.channels_last)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    found.append(model.state_dict())
for name, value in found[0].items():
    torch.testing.assert_close(value, found[1][name], rtol=1e-3, atol=1e-4, msg=name)
mean = found[0]["stages.2.2.synapse2.1.running_mean"]
both = [torch.empty_like(mean) for _ in range(2)]
dist.all_gather(both, mean)
assert not torch.equal(*both), "statistics belong to a rank"
weight = found[0]["stages.2.2.synapse2.0.weight"]
both = [torch.empty_like(weight) for _ in range(2)]
dist.all_gather(both, weight.contiguous())
assert torch.equal(*both), "weights belong to all"
dist.destroy_process_group()
print("agreed")
"""


def test_under_ddp_each_rank_has_its_own_statistics_as_with_batch_norm(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(DDP)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = os.pathsep.join([str(Path(lbq.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*torchrun, str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("agreed") == 2
