"""The whole training loop against its bare step, and two processes against one.

``bench_engine.py --loop pocket`` calls this. A round trains a run on for some steps (data,
augmentation, log, levels watched in every step, everything that ``lbq train`` does between two
checkpoints) and then takes as many bare steps: forward, loss, backward and optimizer on one batch
that lies ready. Medians of steps are compared, which a busy neighbour disturbs less than sums; with
one thread, the time that they ran instead of the time that passed.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional as F

from lbq.train import RECIPES, Recipe, RunOptions, train, write_recipe
from lbq.train.allocator import keep_freed_memory
from lbq.train.metrics import Record
from lbq.train.model_config import build_network
from lbq.train.optim import build_optimizer
from lbq.train.precision import Precision


def compare_loop(
    name: str, source: str, *, rounds: int, steps: int, width: float, batch: int
) -> dict[str, float]:
    """Return samples per second of the loop and of the bare step, and their ratio."""
    recipe = _recipe(name, source, width, batch)
    keep_freed_memory()
    bare = _bare_step(recipe)
    for _ in range(3):
        bare()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    loop_rates: list[float] = []
    bare_rates: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(1, rounds + 2):
            options = RunOptions(stop_at=turn * steps, log_every=1, threads=torch.get_num_threads())
            stamps: list[float] = []

            def note(record: Record, stamps: list[float] = stamps) -> None:
                if record["event"] == "train":
                    stamps.append(clock())

            train(recipe, Path(folder), options, callbacks=[note])
            in_loop = [end - start for start, end in pairwise(stamps)]
            if turn > 1:  # the first round warms caches up
                loop_rates.append(recipe.batch / statistics.median(in_loop))
                alone = [_seconds(bare, clock) for _ in range(steps)]
                bare_rates.append(recipe.batch / statistics.median(alone))
    ratios = [a / b for a, b in zip(loop_rates, bare_rates, strict=True)]
    return {
        "loop_per_s": statistics.median(loop_rates),
        "bare_per_s": statistics.median(bare_rates),
        "ratio": statistics.median(ratios),
        "best_ratio": max(ratios),
        "worst_ratio": min(ratios),
    }


def compare_processes(
    name: str, source: str, *, rounds: int, steps: int, width: float, batch: int
) -> dict[str, float]:
    """Return samples per second of one process with two threads and of two with one each."""
    recipe = _recipe(name, source, width, batch)
    rates: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "recipe.json"
        saved.write_text(write_recipe(recipe))
        for turn in range(1, rounds + 1):
            for devices, found in rates.items():
                out = Path(folder) / str(devices)
                words = ["train", str(saved), "--out", str(out), "--devices", str(devices)]
                words += ["--threads", str(2 // devices), "--log-every", str(steps)]
                words += ["--stop-at", str(turn * 2 * steps)]
                subprocess.run([sys.executable, "-m", "lbq.cli", *words], check=True)  # noqa: S603
                found.append(_last_rate(out))
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    return {
        "one_per_s": statistics.median(rates[1]),
        "two_per_s": statistics.median(rates[2]),
        "ratio": statistics.median(ratios),
    }


def _recipe(name: str, source: str, width: float, batch: int) -> Recipe:
    recipe = RECIPES[name]()
    recipe = replace(recipe, data=replace(recipe.data, source=source))
    return replace(recipe, model=replace(recipe.model, width=width), batch=batch)


def _bare_step(recipe: Recipe) -> Callable[[], None]:
    torch.manual_seed(0)
    order = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = build_network(recipe.model, num_classes=10).to(memory_format=order).train()
    optimizer = build_optimizer(model, recipe.optim)
    precision = Precision(recipe.precision, torch.device("cpu"))
    images = torch.randn(recipe.batch, 3, 32, 32).to(memory_format=order)
    target = torch.randint(0, 10, (recipe.batch,))

    def step() -> None:
        with precision.autocast():
            loss = F.cross_entropy(model(images).float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _seconds(step: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


def _last_rate(out: Path) -> float:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [r["samples_per_s"] for r in records if r["event"] == "train"][-1]
