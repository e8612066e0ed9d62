"""The CPU time that a training image costs before the network sees it, on one thread.

    python benchmarks/bench_data.py                       synthetic images of 32 x 32
    LBQ_DATA=<folder> python benchmarks/bench_data.py     CIFAR-10 from $LBQ_DATA/cifar10

Each row is the least of many rounds, in CPU time of this thread, since other processes disturb wall
time.
"""

import argparse
import dataclasses
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lbq import data
from lbq.data import AugmentConfig, DataConfig, MixConfig

CIFAR = AugmentConfig(crop="pad", flip=True)
STAGES = {
    "normalise": AugmentConfig(),
    "crop, flip": CIFAR,
    "crop, flip, cutout": dataclasses.replace(CIFAR, cutout=16),
    "crop, flip, policy": dataclasses.replace(CIFAR, policy="cifar10"),
    "the CIFAR recipe": dataclasses.replace(CIFAR, policy="cifar10", cutout=16),
    "the recipe and mixing": dataclasses.replace(
        CIFAR, policy="cifar10", cutout=16, mix=MixConfig(mixup=0.8, cutmix=1.0)
    ),
}


def open_cifar(cache: Path) -> data.Data:
    source, limit = data.SYNTHETIC, 20_000
    if "LBQ_DATA" in os.environ:
        source, limit = str(Path(os.environ["LBQ_DATA"]) / "cifar10"), 5_000
    config = DataConfig(source=source, size=32, limit=limit, limit_test=100)
    return data.open_data(config, cache)


def least(run: Callable[[], object], rounds: int) -> float:
    """Return the least CPU seconds of this thread that a call took."""
    best = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
    return best


def stage_seconds(
    opened: data.Data, augment: AugmentConfig, batch: int, workers: int, rounds: int
) -> float:
    """Measure a few batches in a row, so that rare costly operations have their share."""
    config = dataclasses.replace(opened.config, augment=augment)
    opened = dataclasses.replace(opened, config=config)
    best, steps = float("inf"), min(20, data.steps_per_epoch(opened, batch) - 1)
    for epoch in range(rounds):
        batches = data.train_batches(
            opened, seed=0, epoch=epoch, global_batch=batch, num_workers=workers
        )
        next(batches)
        best = min(best, least(lambda: [next(batches) for _ in range(steps)], 1))  # noqa: B023
    return best / (steps * batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        opened = open_cifar(Path(cache))
        found = {
            name: stage_seconds(opened, augment, arguments.batch, 0, arguments.rounds)
            for name, augment in STAGES.items()
        }
        everything = STAGES["the recipe and mixing"]
        found["all of it in a worker, as the main process sees it"] = stage_seconds(
            opened, everything, arguments.batch, 1, arguments.rounds
        )
    for name, seconds in found.items():
        print(f"{name:55s} {1e6 * seconds:6.1f} us per image")
    if arguments.out:
        record = {"command": "bench_data", "source": opened.config.source.rpartition("/")[2]}
        record |= {"batch": arguments.batch, "threads": 1, "machine": platform.machine()}
        record |= {"numpy": np.__version__, "cpu_us_per_image": {}}
        record["cpu_us_per_image"] = {name: round(1e6 * s, 2) for name, s in found.items()}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
