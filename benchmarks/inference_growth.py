"""How the time of one call grows: with timesteps, levels, width, images at once and threads.

One thing changes at a time; the rest is the paper's ResNet-20, T=2, levels 0..5, 0.151 of them
active, one image, one thread. Dense engines beside it run as many images as that has timesteps.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from dense_engines import int8_resnet, onednn_runs, onnx_runs, products_of
from measure import Run, interleaved
from sparse_networks import LEVEL_LAW, UNIFORM, build, by_stage, make_sparse

from lbq.deploy.native_engine import NativeEngine

TIMESTEPS, MAX_LEVELS = (1, 2, 4, 8), (1, 2, 5, 10, 20)
WIDTHS, BATCHES = (0.125, 0.25, 0.5, 1.0), (1, 4, 16, 64)
FEW = 3
"""Rounds for calls that take many images at once."""


def growth(*, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Time every axis; milliseconds of the fastest and the median round."""
    return {axis: list(rows(rounds)) for axis, rows in AXES.items()}


def _along_timesteps(rounds: int) -> Iterator[dict[str, Any]]:
    for timesteps in TIMESTEPS:
        yield {"T": timesteps} | _time(rounds, timesteps=timesteps)


def _along_levels(rounds: int) -> Iterator[dict[str, Any]]:
    for max_level in MAX_LEVELS:
        yield {"N_max": max_level} | _time(rounds, max_level=max_level)


def _along_widths(rounds: int) -> Iterator[dict[str, Any]]:
    for width in WIDTHS:
        yield {"width": width} | _time(rounds, width=width)


def _along_batches(rounds: int, threads: int) -> Iterator[dict[str, Any]]:
    for batch in BATCHES:
        few = min(rounds, FEW) if batch > 1 else rounds
        yield {"batch": batch, "threads": threads} | _time(few, batch=batch, threads=threads)


AXES: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {
    "timesteps": _along_timesteps,
    "levels": _along_levels,
    "width": _along_widths,
    "batch": partial(_along_batches, threads=1),
    "batch, two threads": partial(_along_batches, threads=2),
}


def law_of(max_level: int) -> tuple[float, ...]:
    """Return how active neurons divide over 1..N: the paper's law for 5, halving elsewhere."""
    if max_level == len(LEVEL_LAW):
        return LEVEL_LAW
    shares = [0.5**level for level in range(1, max_level + 1)]
    return tuple(share / sum(shares) for share in shares)


def _time(
    rounds: int,
    *,
    timesteps: int = 2,
    max_level: int = 5,
    width: float = 1.0,
    batch: int = 1,
    threads: int = 1,
) -> dict[str, Any]:
    torch.set_num_threads(threads)
    net = build(width=width, timesteps=timesteps, max_level=max_level)
    torch.manual_seed(1)
    probe = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    make_sparse(net, probe, by_stage(net, UNIFORM, law_of(max_level)))
    images = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8)
    engine = NativeEngine(net)
    runs: dict[str, Run] = {"engine": partial(engine.run, images, threads=threads)}
    runs |= onednn_runs(products_of(net, images))
    del runs["oneDNN fp32"]
    runs |= onnx_runs(int8_resnet(width), timesteps * batch, threads)
    with torch.inference_mode():
        times = interleaved(runs, rounds=rounds, warmups=1, device="cpu")
    row = {name: 1e3 * statistics.median(taken) for name, taken in times.items()}
    print("  ".join(f"{name} {ms:.2f}" for name, ms in row.items()), flush=True)
    return {"median_ms": row, "min_ms": {name: 1e3 * min(t) for name, t in times.items()}}
