"""One training step of the paper's ResNet-20 against the same network as an ANN, in one run.

    python benchmarks/bench_training.py                         paper's width, both precisions
    python benchmarks/bench_training.py --width 0.125 --batch 32 --rounds 15
    python benchmarks/bench_training.py --loop pocket --data $LBQ_DATA/cifar10 --threads 2

The ANN has ReLUs in place of neurons and runs on the same ``T * B`` images (the stem runs once in
both). Neurons of other libraries are put into the same network if they are installed. Rows named
"packed" run inside ``lbq.pack_bursts()``. Steps are interleaved: compare the ratios. Let glibc keep
freed pages, or page faults dominate:

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184 python benchmarks/...

``--loop`` compares ``lbq train`` with its training step alone: a round continues a run for some
steps (data, augmentation, log, watched levels) and then takes as many bare steps on one batch.
Medians of steps are compared, since they are less affected by co-running jobs than sums; with one
thread, CPU time instead of wall time.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from measure import bytes_kept, interleaved, write_record
from other_neurons import other_neurons
from torch import Tensor, nn
from torch.nn import functional as F

import lbq
from lbq.kernels import force_implementation, native_scan, triton_scan
from lbq.train import RECIPES, Recipe, RunOptions, train, write_recipe
from lbq.train.allocator import keep_freed_memory
from lbq.train.metrics import Record
from lbq.train.model_config import build_network
from lbq.train.optim import Precision, build_optimizer


class Network(NamedTuple):
    """A row of the table: a network, the kernels it is forced to run, whether bursts are packed."""

    build: Callable[[], nn.Module]
    kernels: str | None = None
    packs: bool = False


def networks(width: float, timesteps: int, device: str) -> dict[str, Network]:
    """Return every network that runs here, the ANN first."""
    resnet = partial(lbq.resnet20, 10, timesteps=timesteps, width=width)
    ann = partial(resnet, neuron=lambda channels: nn.ReLU())
    found = {"ANN": Network(ann)}
    found["ANN, expand"] = Network(lambda: with_torchs_expand(ann()))
    if device == "cpu" and native_scan.isa():
        found["LBQ, native"] = Network(resnet, "native")
        found["LBQ, native, packed"] = Network(resnet, "native", packs=True)
        found["LBQ, fused"] = Network(partial(resnet, fused=True), "native")
        found["LBQ, fused, packed"] = Network(partial(resnet, fused=True), "native", packs=True)
    if device == "cuda" and triton_scan.kernels():
        found["LBQ, triton"] = Network(resnet, "triton")
    found["LBQ, plain torch"] = Network(resnet, "plain")
    for name, build in {**baselines(timesteps), **other_neurons(max_level=5)}.items():
        found[name] = Network(partial(resnet, neuron=lambda channels, build=build: build()))
    return found


def baselines(timesteps: int) -> dict[str, Callable[[], nn.Module]]:
    """Return the neurons of other papers, each with its own defaults."""
    return {
        "binary": lbq.neurons.BinaryLIF,
        "hard reset": lbq.neurons.HardResetLIF,
        "ternary": lbq.neurons.TernaryLIF,
        "original ternary": lbq.neurons.OriginalTernaryLIF,
        "I-LIF": lbq.neurons.IntegerLIF,
        "MLF": lbq.neurons.MultiLevelLIF,
        "LM-HT": partial(lbq.neurons.LMHT, timesteps),
    }


class Expand(nn.Module):
    """``RepeatOverTime`` without its own gradient."""

    def __init__(self, timesteps: int) -> None:
        super().__init__()
        self.timesteps = timesteps

    def forward(self, current: Tensor) -> Tensor:
        """Repeat."""
        return current.expand(self.timesteps, *current.shape)


def with_torchs_expand(model: nn.Module) -> nn.Module:
    """Use torch's expand, whose gradient is in channels first whatever the memory order was."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, lbq.RepeatOverTime):
                setattr(module, name, Expand(child.timesteps))
    return model


class Step(NamedTuple):
    """One training step of a network, without the optimizer."""

    forward: Callable[[], Tensor]
    model: nn.Module

    def __call__(self) -> None:
        """Run forward and backward."""
        self.forward().backward()
        self.model.zero_grad()


def step_of(network: Network, *, batch: int, device: str, half: bool, channels_last: bool) -> Step:
    """Build a network and its training step."""
    torch.manual_seed(0)
    model = network.build().to(device)
    images = torch.randn(batch, 3, 32, 32).to(device)
    target = torch.randint(0, 10, (batch,)).to(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        images = images.to(memory_format=torch.channels_last)
    device_type = torch.device(device).type

    def forward() -> Tensor:
        kernels = (
            nullcontext() if network.kernels is None else force_implementation(network.kernels)
        )
        packing = lbq.pack_bursts() if network.packs else nullcontext()
        with kernels, packing, torch.autocast(device_type, dtype=torch.bfloat16, enabled=half):
            return F.cross_entropy(model(images).float(), target)

    return Step(forward, model)


def measure(steps: dict[str, Step], rounds: int, device: str) -> dict[str, dict[str, float]]:
    times = interleaved({**steps}, rounds=rounds, warmups=1, device=device)
    kept = {name: bytes_kept(step.forward) for name, step in steps.items()}
    ann = times["ANN"]
    return {
        name: {
            "median_ms": 1e3 * statistics.median(found),
            "min_ms": 1e3 * min(found),
            "to_ann": statistics.median(a / b for a, b in zip(found, ann, strict=True)),
            "min_to_ann": min(found) / min(ann),
            "kept_to_ann": kept[name] / kept["ANN"],
            **to_unpacked(name, times),
        }
        for name, found in times.items()
    }


def to_unpacked(name: str, times: dict[str, list[float]]) -> dict[str, float]:
    """Compare a row with packed bursts with the same row without them, if it ran."""
    plain = times.get(name.removesuffix(", packed"), [])
    if not name.endswith(", packed") or not plain:
        return {}
    ratios = [a / b for a, b in zip(times[name], plain, strict=True)]
    return {"to_unpacked": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--timesteps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bf16 channels_last"])
    parser.add_argument("--only", nargs="+", help="these rows beside the ANN", metavar="ROW")
    parser.add_argument("--loop", metavar="RECIPE", help="lbq train against its bare step instead")
    parser.add_argument("--data", default="synthetic", help="what --loop trains on")
    parser.add_argument("--steps", type=int, default=20, help="of one round of --loop")
    parser.add_argument("--processes", action="store_true", help="--loop: two processes, too")
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.loop:
        bench_loop(arguments)
        return
    device = arguments.device
    rows = networks(arguments.width, arguments.timesteps, device)
    if arguments.only:
        rows = {name: row for name, row in rows.items() if name in ("ANN", *arguments.only)}
    record = {
        "command": "bench_training",
        "machine": platform.machine(),
        "torch": torch.__version__,
    }
    record |= {key: value for key, value in vars(arguments).items() if key != "out"}
    for precision in arguments.precisions:
        steps = {
            name: step_of(
                network,
                batch=arguments.batch,
                device=device,
                half=precision.startswith("bf16"),
                channels_last="channels_last" in precision,
            )
            for name, network in rows.items()
            if "channels_last" in precision or "fused" not in name
        }
        record[precision] = found = measure(steps, arguments.rounds, device)
        print(
            f"\n{precision}, width {arguments.width}, T={arguments.timesteps}, B={arguments.batch}"
        )
        titles = f"{'median ms':>11}{'min ms':>9}{'x ANN':>8}{'min':>8}{'kept x ANN':>12}"
        print(f"{'':26}{titles}{'x unpacked':>12}")
        for name, row in found.items():
            print(
                f"{name:26}{row['median_ms']:11.1f}{row['min_ms']:9.1f}{row['to_ann']:8.3f}"
                f"{row['min_to_ann']:8.3f}{row['kept_to_ann']:12.3f}"
                + (f"{row['to_unpacked']:12.3f}" if "to_unpacked" in row else "")
            )
    write_record(arguments.out, record)


def bench_loop(arguments: argparse.Namespace) -> None:
    """Print the loop against its bare step, and two processes against one."""
    options = {key: getattr(arguments, key) for key in ("rounds", "steps", "width", "batch")}
    record = {"command": "bench_training --loop", "torch": torch.__version__}
    record |= {key: value for key, value in vars(arguments).items() if key != "out"}
    record["data"] = Path(arguments.data).name
    record["loop"] = found = compare_loop(arguments.loop, arguments.data, **options)
    print(
        f"{arguments.loop}, width {arguments.width}, B={arguments.batch}: "
        f"{found['loop_per_s']:.0f} samples/s of {found['bare_per_s']:.0f} bare, "
        f"ratio {found['ratio']:.3f} "
        f"({found['worst_ratio']:.3f}..{found['best_ratio']:.3f})"
    )
    if arguments.processes:
        record["processes"] = two = compare_processes(arguments.loop, arguments.data, **options)
        print(
            f"two processes {two['two_per_s']:.0f} samples/s, one {two['one_per_s']:.0f}, ratio "
            f"{two['ratio']:.3f}"
        )
    write_record(arguments.out, record)


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


if __name__ == "__main__":
    main()
