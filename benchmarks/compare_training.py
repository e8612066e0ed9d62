"""Train the same small network on CIFAR-10 with two implementations of the neuron and compare.

    LBQ_DATA=<folder> python benchmarks/compare_training.py <folder of runs> --out <record>.json
    LBQ_DATA=<folder> python benchmarks/compare_training.py <folder of runs> --steps 20

Two implementations emit the same levels, but their gradients differ by rounding. Some steps later
a level crosses a threshold and the curves diverge, so the *final* accuracies are compared. The
rule: the mean test accuracies over the seeds may differ by at most two pooled standard deviations
over the seeds. Both start from the same weights and see the same batches for the same seed. The
first run is repeated and must give the same bits.

Every finished run is a file in the folder of runs: a killed script continues after the last one.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from cifar10 import read_cifar10
from torch import Tensor, nn
from torch.nn import functional as F

import lbq
from lbq.kernels import force_implementation, native_scan
from lbq.models.resnet import ResNetShape

TOLERANCES = (1e-6, 1e-3)
RULE = "|mean - mean of plain| <= 2 * pooled standard deviation of the test accuracy over seeds"

Run = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that must be equal for two runs to be compared."""

    steps: int
    train_images: int
    test_images: int
    batch_size: int = 32
    image_size: int = 16
    channels: tuple[int, ...] = (16, 32)
    timesteps: int = 2
    max_level: int = 5
    learning_rate: float = 0.1
    device: str = "cpu"


@dataclass(frozen=True)
class Data:
    """CIFAR-10, shrunk by averaging."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def read_data(settings: Settings) -> Data:
    def read(split: str, count: int) -> tuple[Tensor, Tensor]:
        images, labels = read_cifar10(split, count)
        small = F.adaptive_avg_pool2d(images, settings.image_size)
        return small.to(settings.device), labels.to(settings.device)

    return Data(read("train", settings.train_images), read("test", settings.test_images))


def build(settings: Settings) -> nn.Module:
    """Build one residual block per stage; the first one already halves the image."""
    shape = ResNetShape(
        blocks=(1,) * len(settings.channels),
        channels=settings.channels,
        stem_channels=settings.channels[0],
    )
    return lbq.SpikingResNet(
        shape,
        num_classes=10,
        timesteps=settings.timesteps,
        neuron=lambda channels: lbq.BurstLIF(settings.max_level),
        first_stage_stride=2,
    ).to(settings.device)


def train(data: Data, settings: Settings, *, seed: int) -> Run:
    """Train by SGD with momentum and a cosine; return the loss of every step and the accuracy."""
    torch.manual_seed(seed)
    model = build(settings)
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]  # batch norm, biases, steps, tails
    groups = [{"params": weights, "weight_decay": 5e-4}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=settings.learning_rate, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    images, labels = data.train
    order = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(settings.steps):
        chosen = torch.randint(len(images), (settings.batch_size,), generator=order)
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cosine.step()
        losses.append(float(f"{loss.item():.9g}"))  # nine digits tell all float32 apart
        if not math.isfinite(losses[-1]):
            raise RuntimeError(f"the loss of seed {seed} became {losses[-1]} at step {step}")
    return {
        "test_accuracy": accuracy(model, *data.test),
        "weights_sha256": digest(model),
        "losses": losses,
    }


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    answers = torch.cat([model(batch).argmax(1) for batch in images.split(500)])
    return (answers == labels).double().mean().item()


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def finish(path: Path, data: Data, settings: Settings, *, implementation: str, seed: int) -> Run:
    """Return a finished run, from its file if there is one."""
    made_with = json.loads(json.dumps(asdict(settings)))  # as it reads back: lists, not tuples
    if path.exists():
        run = json.loads(path.read_text())
        if run["settings"] != made_with:
            sys.exit(
                f"{path} was made with {run['settings']}, not with {made_with}; name another "
                f"folder of runs"
            )
        return run
    start = time.perf_counter()
    with force_implementation(implementation):
        run = {"settings": made_with} | train(data, settings, seed=seed)
    print(
        f"{path.stem}: accuracy {run['test_accuracy']:.4f}, {time.perf_counter() - start:.0f} s",
        flush=True,
    )
    write(path, run)
    return run


def write(path: Path, content: Run) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(part, path)


def first_difference(losses: list[float], others: list[float], tolerance: float) -> int | None:
    """Find the first step at which two curves differ by more than a share of the larger loss."""
    for step, (a, b) in enumerate(zip(losses, others, strict=True)):
        if abs(a - b) > tolerance * max(abs(a), abs(b)):
            return step
    return None


def compare(accuracies: list[float], plain: list[float]) -> dict[str, Any]:
    """Apply the rule."""
    spread = math.sqrt((statistics.variance(accuracies) + statistics.variance(plain)) / 2)
    difference = statistics.mean(accuracies) - statistics.mean(plain)
    return {
        "mean": statistics.mean(accuracies),
        "mean_plain": statistics.mean(plain),
        "difference": difference,
        "pooled_standard_deviation": spread,
        "agrees": abs(difference) <= 2 * spread,
    }


def summary(run: Run) -> dict[str, Any]:
    """Shorten a run for a record: the curve becomes means over a twentieth of the steps each."""
    losses, part = run["losses"], max(1, len(run["losses"]) // 20)
    text = json.dumps(losses).encode()
    return {
        "test_accuracy": run["test_accuracy"],
        "weights_sha256": run["weights_sha256"],
        "losses_sha256": hashlib.sha256(text).hexdigest(),
        "mean_losses": [
            round(statistics.mean(losses[i : i + part]), 4) for i in range(0, len(losses), part)
        ],
    }


def report(runs: dict[str, Run], implementation: str, seeds: int) -> dict[str, Any]:
    curves = {name: run["losses"] for name, run in runs.items()}
    accuracies = {name: run["test_accuracy"] for name, run in runs.items()}

    def over_seeds(name: str) -> list[float]:
        return [accuracies[f"{name}_seed{seed}"] for seed in range(seeds)]

    first, again = runs[f"{implementation}_seed0"], runs[f"{implementation}_seed0_again"]
    return {
        "rule": RULE,
        **compare(over_seeds(implementation), over_seeds("plain")),
        "repeats_itself": first == again,
        "first_step_that_differs": {
            f"seed {seed}": {
                f"by {tolerance:g}": first_difference(
                    curves[f"{implementation}_seed{seed}"], curves[f"plain_seed{seed}"], tolerance
                )
                for tolerance in TOLERANCES
            }
            for seed in range(seeds)
        },
        "runs": {name: summary(run) for name, run in runs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds the finished runs")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--implementation", default="native", help="compared with plain")
    parser.add_argument("--train-images", type=int, default=50_000)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the network is too small for more
    settings = Settings(
        steps=arguments.steps,
        train_images=arguments.train_images,
        test_images=arguments.test_images,
        device=arguments.device,
    )
    data = read_data(settings)
    names = [arguments.implementation, "plain"]
    todo = {f"{name}_seed{seed}": (name, seed) for seed in range(arguments.seeds) for name in names}
    todo[f"{names[0]}_seed0_again"] = (names[0], 0)
    runs = {
        key: finish(
            arguments.folder / f"{key}.json", data, settings, implementation=name, seed=seed
        )
        for key, (name, seed) in todo.items()
    }
    found = report(runs, names[0], arguments.seeds)
    print(json.dumps({key: value for key, value in found.items() if key != "runs"}, indent=1))
    if arguments.out:
        record = {"command": "compare_training", "machine": platform.machine()}
        record |= {
            "torch": torch.__version__,
            "isa": native_scan.isa(),
            "settings": asdict(settings),
        }
        write(arguments.out, record | found)


if __name__ == "__main__":
    main()
