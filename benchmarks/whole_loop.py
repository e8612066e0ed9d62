"""The whole training loop against its bare step, and two processes against one.

``bench_engine.py --loop pocket`` calls this. A round trains a run on for some steps (data,
augmentation, journal, checkpoints, everything that ``lbq train`` does) and then takes as many bare
steps: forward, loss, backward and optimizer on one batch that lies ready. With one thread both are
timed by the time that they ran, which a busy neighbour disturbs less than the time that passed.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from lbq.train import RECIPES, Recipe, RunOptions, train, write_recipe
from lbq.train.allocator import keep_freed_memory
from lbq.train.journal import Record
from lbq.train.network import build_network
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
            options = RunOptions(
                stop_at=turn * steps, log_every=steps, threads=torch.get_num_threads()
            )
            times: dict[str, float] = {}

            def note(record: Record, times: dict[str, float] = times) -> None:
                times[record["event"]] = clock()

            train(recipe, Path(folder), options, listeners=[note])
            start = clock()
            for _ in range(steps):
                bare()
            seconds = clock() - start
            if turn > 1:  # the first round warms caches up
                loop_rates.append(recipe.batch * steps / (times["train"] - times["resume"]))
                bare_rates.append(recipe.batch * steps / seconds)
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


def _last_rate(out: Path) -> float:
    lines = (out / "journal.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [r["samples_per_s"] for r in records if r["event"] == "train"][-1]
