"""What the processes of ``tests/crew.py`` do: each function is one job, called on every rank."""

import hashlib
import os

import torch
import torch._dynamo  # optimizers import it when first used: once here, not in every child

import lbq
from lbq.train.gradients import AveragedGradients, CanonicalGradients
from lbq.train.loss import Lesson
from lbq.train.precision import Precision
from lbq.train.running import RunningStatistics
from lbq.train.world import open_world


def digest(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def tell_rank():
    return int(os.environ["RANK"])


def collectives():
    with open_world("cpu", timeout_s=30) as world:
        mine = torch.tensor([float(world.rank), 1.0])
        lines = world.gather(mine).tolist()
        strided = torch.arange(6.0).reshape(2, 3).t() + world.rank
        world.broadcast_(strided)
        text = world.broadcast_text("grüß" if world.is_first else None)
        world.barrier()
        return [world.sum_(mine).tolist(), lines, strided.tolist(), text]


def small_lesson(neuron=None, **options):
    torch.manual_seed(0)
    builders = {"relu": lambda channels: torch.nn.ReLU()}
    model = lbq.resnet20(4, width=1 / 32, timesteps=2, neuron=builders.get(neuron))
    return Lesson(model, **options)


def gradients_of_one_batch(mode, shards=4, accumulate=1, kind="fp32", stopping_rank=None):
    """Return digests of gradients and statistics, and the shared numbers."""
    with open_world("cpu", timeout_s=30) as world:
        lesson = small_lesson()
        precision = Precision(kind, world.device)
        if mode == "canonical":
            gradients = CanonicalGradients(lesson, world, precision=precision, shards=shards)
        else:
            gradients = AveragedGradients(lesson, world, precision=precision, accumulate=accumulate)
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(16, 3, 8, 8, generator=generator)
        target = torch.randint(0, 4, (16,), generator=generator)
        mine = slice(world.rank * 16 // world.size, (world.rank + 1) * 16 // world.size)
        stop = world.rank == stopping_rank
        shared = gradients.compute(images[mine], target[mine], stop=stop)
        statistics = RunningStatistics(lesson)
        statistics.write(shared.statistics)
        return {
            "gradients": digest(p.grad for p in lesson.parameters()),
            "norm": torch.nn.utils.get_total_norm([p.grad for p in lesson.parameters()]).item(),
            "buffers": digest(lesson.buffers()),
            "loss": shared.loss.item(),
            "correct": shared.correct.item(),
            "stop": shared.stop.item(),
        }
