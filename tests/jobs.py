"""Jobs for ``tests/worker_pool.py``: each function is called on every rank."""

import hashlib
import os
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it when first used: once here, not in every child
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import lbq
from lbq.data import open_data
from lbq.train import engine, loop
from lbq.train.build import build_state
from lbq.train.checkpoint import CheckpointFolder
from lbq.train.distributed import open_process_group
from lbq.train.evaluation import evaluate
from lbq.train.loss import ModelWithLoss
from lbq.train.optim import Precision
from lbq.train.recipe import recipe_from_document
from lbq.train.task import RunOptions
from lbq.train.train_step import AveragedGradients, BatchNormStats, CanonicalGradients


def digest(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def tell_rank():
    return int(os.environ["RANK"])


def collectives():
    with open_process_group("cpu", timeout_s=30) as group:
        mine = torch.tensor([float(group.rank), 1.0])
        lines = group.all_gather(mine).tolist()
        strided = torch.arange(6.0).reshape(2, 3).t() + group.rank
        group.broadcast_(strided)
        text = group.broadcast_text("grüß" if group.is_first else None)
        group.barrier()
        return [group.all_reduce_(mine).tolist(), lines, strided.tolist(), text]


def small_model_with_loss(neuron=None, **options):
    torch.manual_seed(0)
    builders = {"relu": lambda channels: torch.nn.ReLU()}
    model = lbq.resnet20(4, width=1 / 32, timesteps=2, neuron=builders.get(neuron))
    return ModelWithLoss(model, **options)


def gradients_of_one_batch(mode, shards=4, accumulate=1, kind="fp32", stopping_rank=None):
    """Return digests of gradients and statistics, and the reduced numbers."""
    with open_process_group("cpu", timeout_s=30) as group:
        model = small_model_with_loss()
        precision = Precision(kind, group.device)
        if mode == "canonical":
            gradients = CanonicalGradients(model, group, precision=precision, parts=shards)
        else:
            gradients = AveragedGradients(model, group, precision=precision, parts=accumulate)
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(16, 3, 8, 8, generator=generator)
        target = torch.randint(0, 4, (16,), generator=generator)
        mine = slice(group.rank * 16 // group.size, (group.rank + 1) * 16 // group.size)
        stop = group.rank == stopping_rank
        reduced = gradients.compute(images[mine], target[mine], stop=stop)
        statistics = BatchNormStats(model)
        statistics.write(reduced.statistics)
        return {
            "gradients": digest(p.grad for p in model.parameters()),
            "grad_norm": torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item(),
            "buffers": digest(model.buffers()),
            "loss": reduced.loss.item(),
            "correct": reduced.correct.item(),
            "stop": reduced.stop.item(),
        }


def count(recipe, num_test, batch, step=None):
    """Evaluate a fresh network; return right answers, samples and loss."""
    recipe = recipe_from_document(recipe)
    with open_process_group("cpu", timeout_s=60) as group:
        data = open_data(recipe.data, Path("/nonexistent"))
        assert data.num_test == num_test
        state = build_state(recipe.build_model(data.num_classes), recipe, group)
        precision = Precision("fp32", group.device)
        found = evaluate(state.model, data, group, precision=precision, batch=batch)
        return found.correct, found.count, found.loss


def train_run(out, recipe, options=None, fault=None, has_own_group=False, is_taught=False):
    """Train, perhaps with a fault; return how it ended, with a digest of what this rank holds."""
    if has_own_group:
        os.setsid()
    states = []
    real_state = loop.build_state
    loop.build_state = lambda *args: states.append(real_state(*args)) or states[0]
    options = RunOptions(**{"device": "cpu", "timeout_s": 30.0, **(options or {})})
    if fault is not None:
        FAULTS[fault["kind"]](**{key: value for key, value in fault.items() if key != "kind"})
    recipe = recipe_from_document(recipe)
    if is_taught:
        model, data, config = recipe.build(options.cache)
        teacher = replace(recipe, seed=99).build_model(data.num_classes)
        given = {"options": options, "teacher": teacher}
        outcome = lbq.fit(model, data, data, config, Path(out), **given)
    else:
        outcome = engine.train(recipe, Path(out), options)
    if outcome.exit_code:
        sys.exit(outcome.exit_code)
    tensors = [t for part in states[0].tensors().values() for t in part.values()]
    return {
        "ending": outcome.ending,
        "step": outcome.step,
        "accuracy": [found.accuracy for found in outcome.evaluations],
        "tensors": digest(tensors),
        "buffers": digest(states[0].model.buffers()),
        "is_finite": all(bool(torch.isfinite(t).all()) for t in tensors),
    }


def orphan(out, recipe):
    """Start a training process as its guardian, and leave it behind."""
    os.environ["LBQ_PARENT_PID"] = str(os.getpid())
    if os.fork() == 0:
        try:
            engine.train(recipe_from_document(recipe), Path(out), RunOptions(log_every=1))
        finally:
            os._exit(0)
    while not (Path(out) / "metrics.jsonl").exists():
        time.sleep(0.01)


def _poison(rank, step, value="nan", times=1):
    """Put a NaN into the images of one rank at a step (counted from 1), and maybe the next ones."""
    real, count = loop.train_batches, iter(range(1, 10**9))

    def poisoned(*args, **kwargs):
        for batch in real(*args, **kwargs):
            if int(os.environ["RANK"]) == rank and step <= next(count) < step + times:
                batch.x[0, 0, 0, 0] = float(value)
            yield batch

    loop.train_batches = poisoned


def _full_disk(first_save, last_save):
    """Let files hold no more than a few bytes from one save to another (counted from 1)."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    real, count = CheckpointFolder.save, iter(range(1, 10**9))

    def save(self, checkpoint):
        is_full = first_save <= next(count) <= last_save
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000 if is_full else hard, hard))
        try:
            return real(self, checkpoint)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    CheckpointFolder.save = save


def _crash(rank, step):
    """Raise on one rank at a step (counted from 1)."""
    real, count = loop.train_batches, iter(range(1, 10**9))

    def crashing(*args, **kwargs):
        for batch in real(*args, **kwargs):
            if int(os.environ["RANK"]) == rank and next(count) == step:
                raise RuntimeError("a fault of our own")
            yield batch

    loop.train_batches = crashing


FAULTS = {"poison": _poison, "full disk": _full_disk, "crash": _crash}


def sharded_step():
    """Take one step of a network wrapped in fully_shard; return its loss and weights whole."""
    with open_process_group("cpu", timeout_s=30) as group:
        model = small_model_with_loss()
        fully_shard(model, mesh=init_device_mesh("cpu", (group.size,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(8, 3, 8, 8, generator=generator)
        loss, _ = model(images, torch.arange(8) % 4)  # the same on every rank
        loss.backward()
        optimizer.step()
        return [loss.item(), [p.full_tensor().sum().item() for p in model.parameters()]]


def plain_step():
    """Take the same step without any wrapping."""
    model = small_model_with_loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    loss, _ = model(images, torch.arange(8) % 4)
    loss.backward()
    optimizer.step()
    return [loss.item(), [p.sum().item() for p in model.parameters()]]
