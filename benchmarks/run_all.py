"""Check every claim about speed in a few minutes: ours against the bare engine.

    python benchmarks/run_all.py --quick              compares with the committed ratios
    python benchmarks/run_all.py --quick --write      commits to the ratios of this run

Each claim is a ratio of times: ours divided by the bare engine, which is the network with ReLUs, or
OpenVINO in int8. Runs are interleaved, and the lower of two ratios counts: of the fastest rounds,
and the median of the rounds. A claim that is more than ``--tolerance`` times its committed ratio in
``results/claims.json`` is measured again, up to three times in all, since other jobs on the machine
only add time; if it stays above, the program ends with 1. Ratios are committed per instruction set
of the processor; without committed ratios they are only printed. ``--quick`` takes fewer rounds.
CIFAR-10 comes from ``$LBQ_DATA/cifar10``; without it claims about trained networks are left out.
"""

import argparse
import json
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from bench_inference import at_sparsity
from bench_training import networks, step_of
from dense_engines import int8_resnet, onnx_runs
from measure import Run, interleaved
from sparse_networks import build

import lbq
from lbq.cli.samples import sample_batches
from lbq.runtime.native_engine import NativeEngine
from lbq.train.allocator import keep_freed_memory
from lbq.train.provenance import git_commit
from lbq_paper.int8_ann import int8_onnx, openvino, without_time
from lbq_paper.trained_network import open_trained, trained_ann

CLAIMS = Path(__file__).with_name("results") / "claims.json"
TRIES = 3
NEURONS = (
    *("LBQ, native", "LBQ, fused", "LBQ, fused, packed"),
    *("binary", "ternary", "original ternary", "I-LIF", "MLF", "LM-HT"),
)
TRAINED = ("pocket-budget-cifar10", "pocket-cifar10")


class Group(NamedTuple):
    """Runs that are timed together, and the claims about them: name, our run, the bare run."""

    runs: dict[str, Run]
    claims: list[tuple[str, str, str]]
    rounds: int


def training_step(width: float, batch: int, rows: tuple[str, ...], rounds: int) -> Group:
    """Training steps of the paper's ResNet-20 against the network with ReLUs."""
    found = networks(width, 2, "cpu")
    runs: dict[str, Run] = {
        name: step_of(found[name], batch=batch, device="cpu", half=False, channels_last=True)
        for name in ("ANN", *rows)
    }
    what = "training step" if width == 1 else f"training step, width {width:g}"
    claims = [(f"{what}: {name} / ReLU", name, "ANN") for name in runs if name != "ANN"]
    return Group(runs, claims, rounds)


def engine_at_full_width(rounds: int) -> Group:
    """The integer engine at the paper's width, 0.151 active, against OpenVINO's int8."""
    torch.manual_seed(2)
    images = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    model = int8_resnet(1.0)
    runs: dict[str, Run] = {}
    claims: list[tuple[str, str, str]] = []
    for timesteps in (1, 2):
        net = at_sparsity("uniform", Namespace(width=1.0, data=None), timesteps)
        ours, bare = f"engine, T={timesteps}", f"OpenVINO, T={timesteps}"
        runs[ours] = partial(NativeEngine(net).run, images, threads=1)
        runs[bare] = onnx_runs(model, timesteps, 1)["OpenVINO int8"]
        claims.append((f"integers, T={timesteps}: engine / OpenVINO int8", ours, bare))
    return Group(runs, claims, rounds)


def trained_networks(batch: int, rounds: int) -> Group:
    """Pretrained networks on real images, against the trained ReLU network in int8."""
    data = str(Path(os.environ["LBQ_DATA"]) / "cifar10")
    runs: dict[str, Run] = {}
    claims: list[tuple[str, str, str]] = []
    bare = "int8 ANN, OpenVINO"
    for name in TRAINED:
        known = open_trained(name, data)
        net = lbq.to_fixed_point(known.lowered, pixels=known.pixels, calibration=known.calibration)
        samples = next(sample_batches(known.data, limit=batch, batch=batch))
        runs[name] = partial(NativeEngine(net).run, samples.raw, threads=1)
        claims.append((f"{name}, batch {batch}: engine / {bare}", name, bare))
        if bare not in runs:
            real = np.ascontiguousarray(samples.real.numpy())
            model = int8_onnx(without_time(trained_ann()), known.calibration)
            runs[bare] = partial(openvino(model, real.shape, threads=1), real)
    return Group(runs, claims, rounds)


def groups(*, quick: bool) -> Iterator[Callable[[], Group]]:
    """Yield a builder of each group; a group is freed before the next is built."""
    more = 1 if quick else 3
    yield partial(training_step, 1.0, 1, ("LBQ, native", "LBQ, fused", "MLF"), 11 * more)
    yield partial(training_step, 0.125, 32, NEURONS, 11 * more)
    yield partial(engine_at_full_width, 25 * more)
    if "LBQ_DATA" in os.environ:
        yield partial(trained_networks, 1, 101 * more)
        yield partial(trained_networks, 64, 15 * more)


def ratios(group: Group) -> dict[str, float]:
    """Time the runs of a group; return the ratio of each claim."""
    times = interleaved(group.runs, rounds=group.rounds, warmups=2, device="cpu")
    found: dict[str, float] = {}
    for claim, ours, bare in group.claims:
        median = statistics.median(a / b for a, b in zip(times[ours], times[bare], strict=True))
        found[claim] = min(median, min(times[ours]) / min(times[bare]))
    return found


def measured(group: Group, limits: dict[str, float]) -> dict[str, float]:
    """Return the ratios of a group, measured again while one of them is too high."""
    best: dict[str, float] = {}
    for _ in range(TRIES):
        for claim, ratio in ratios(group).items():
            best[claim] = min(ratio, best.get(claim, ratio))
        if not above(best, limits):
            break
    return best


def above(found: dict[str, float], limits: dict[str, float]) -> list[str]:
    """Return the claims whose ratio is above their limit."""
    return [claim for claim, ratio in found.items() if ratio > limits.get(claim, ratio)]


def main() -> None:
    """Measure every claim, print it beside the committed ratio, and list those that are worse."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under five minutes")
    parser.add_argument("--tolerance", type=float, default=1.1, help="times the committed ratio")
    parser.add_argument("--write", action="store_true", help="commit to the ratios of this run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    isa = NativeEngine(build(width=0.0625, timesteps=1)).isa
    known = json.loads(CLAIMS.read_text()) if CLAIMS.exists() else {}
    committed: dict[str, float] = {} if options.write else known.get(isa, {}).get("ratios", {})
    limits = {claim: options.tolerance * ratio for claim, ratio in committed.items()}
    start = time.perf_counter()
    found: dict[str, float] = {}
    print(f"{'':62}{'ours / bare':>12}{'committed':>11}", flush=True)
    for make in groups(quick=options.quick):
        group = measured(make(), limits)
        for claim, ratio in group.items():
            beside = f"{committed[claim]:11.2f}" if claim in committed else ""
            print(f"{claim:62}{ratio:12.2f}{beside}", flush=True)
        found |= group
    print(f"{isa}, {time.perf_counter() - start:.0f} s")
    if options.write:
        known[isa] = {"commit": git_commit(), "ratios": found}
        CLAIMS.write_text(json.dumps(known, indent=1) + "\n")
    elif not committed:
        print(f"no ratios are committed for {isa}: nothing is compared")
    slower = above(found, limits)
    if slower:
        print(f"above {options.tolerance:g} x the committed ratio: " + "; ".join(slower))
    sys.exit(bool(slower))


if __name__ == "__main__":
    main()
