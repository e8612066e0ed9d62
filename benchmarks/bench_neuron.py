"""One neuron, forward and backward, side by side in one run: time ratios and bytes kept.

    python benchmarks/bench_neuron.py                     the figures quoted in the documents
    python benchmarks/bench_neuron.py --threads 2 --out benchmarks/results/neuron_<cpu>_<date>.json

glibc gives large tensors fresh pages at every allocation, which costs more than the neuron
itself; to see the kernels, let it keep them:

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184 python benchmarks/...

Variants are interleaved, so all of them see the same conditions: compare the ratios. Any
implementation must move 24 bytes per neuron and timestep: the forward pass reads one float and
writes two, the backward pass reads two and writes one. The copy does that and nothing else.
"""

import argparse
import json
import math
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Run, bytes_kept, interleaved
from other_neurons import other_neurons
from torch import Tensor

from lbq.kernels import (
    ScanOptions,
    burst_scan,
    burst_scan_reference,
    force_implementation,
    native_scan,
    triton_scan,
)

OPTIONS = ScanOptions(max_level=5, lo=1.0, hi=5.0)
DECAY, RESET = 0.5, 1.0

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]


def naive(currents: Tensor, step: Tensor, tail: Tensor) -> Tensor:
    """The equations with ``where`` and autograd."""
    n, carry, bursts = OPTIONS.max_level, torch.zeros_like(currents[0]), []
    for current in currents:
        membrane = DECAY * carry + current
        ratio = membrane / step
        level = torch.clamp(torch.floor(ratio), 0, n)
        below = 1 + tail * (torch.exp(torch.clamp(ratio - 1, max=0)) - 1)
        above = n + tail * (1 - torch.exp(torch.clamp(n - ratio, max=0)))
        soft = torch.where(ratio < 1, below, torch.where(ratio > n, above, ratio))
        bursts.append(step * (soft + (level - soft).detach()))
        carry = membrane - RESET * step * (level > 0)
    return torch.stack(bursts)


def reference(currents: Tensor, step: Tensor, tail: Tensor) -> Tensor:
    return burst_scan_reference(
        currents, step, tail=tail, decay=DECAY, reset=RESET, carry=None, options=OPTIONS
    ).bursts


def scan(currents: Tensor, step: Tensor, tail: Tensor) -> Tensor:
    return burst_scan(currents, step, tail=tail, decay=DECAY, reset=RESET, options=OPTIONS).bursts


def forced(name: str, call: Scan = scan) -> Scan:
    def run(currents: Tensor, step: Tensor, tail: Tensor) -> Tensor:
        with force_implementation(name):
            return call(currents, step, tail)

    return run


def burst_neurons(device: str, compiled: bool) -> dict[str, Scan]:
    """Return every implementation that runs here."""
    scans = {"naive loop": naive, "reference loop": reference, "plain torch": forced("plain")}
    if device == "cpu" and native_scan.isa():
        scans[f"native, {native_scan.isa()}"] = forced("native")
    if device == "cuda" and triton_scan.kernels():
        scans["triton"] = forced("triton")
    if compiled:
        scans["plain, compiled"] = forced("plain", torch.compile(scan, fullgraph=True))
        scans["reference, compiled"] = torch.compile(reference, fullgraph=True)
        scans["naive, compiled"] = torch.compile(naive, fullgraph=True)
    return scans


def copy_24_bytes(values: Tensor, grad: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Move the bytes that any neuron must move, and compute nothing that takes time.

    The forward writes each small piece of the input twice, one copy after the other, so the piece
    is read from memory once.
    """
    size = math.gcd(values.numel(), 4096)
    twice = values.view(-1, 1, size).expand(-1, 2, -1).contiguous()  # [pieces, 2, size]
    return twice, torch.add(grad, other)


def measure(
    shape: list[int], rounds: int, device: str, compiled: bool
) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    leaf = (0.6 * torch.randn(shape, device=device)).requires_grad_()
    step = torch.tensor([0.3], device=device, requires_grad=True)
    tail = torch.tensor([0.5], device=device, requires_grad=True)
    grad, other = torch.randn(shape, device=device), torch.randn(shape, device=device)
    ours = burst_neurons(device, compiled)
    others: dict[str, Callable[[Tensor], Tensor]] = {"ReLU": torch.relu}
    others |= {name: build().to(device) for name, build in other_neurons(OPTIONS.max_level).items()}
    forward: dict[str, Callable[[], Tensor]] = {
        name: lambda run=run: run(leaf, step, tail) for name, run in ours.items()
    }
    forward |= {name: lambda run=run: run(leaf) for name, run in others.items()}
    runs: dict[str, Run] = {"copy of 24 bytes": lambda: copy_24_bytes(leaf.detach(), grad, other)}
    for name, run in forward.items():
        inputs = (leaf, step, tail) if name in ours else (leaf,)
        runs[name] = lambda run=run, inputs=inputs: torch.autograd.grad(run(), inputs, grad)
    times = interleaved(runs, rounds=rounds, warmups=2, device=device)  # the first two compile
    naive_median = statistics.median(times["naive loop"])
    copy_median = statistics.median(times["copy of 24 bytes"])
    result = {}
    for name, found in times.items():
        median = statistics.median(found)
        result[name] = {
            "median_ms": 1e3 * median,
            "min_ms": 1e3 * min(found),
            "to_naive": median / naive_median,
            "to_copy": median / copy_median,
        }
        if name in forward and "compiled" not in name:
            result[name]["bytes_kept"] = bytes_kept(forward[name]) / leaf.numel()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=int, nargs="+", default=[4, 16, 128, 32, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = measure(arguments.shape, arguments.rounds, arguments.device, not arguments.no_compile)
    print(
        f"[T, B, *n] = {arguments.shape}, {arguments.threads} thread(s), torch {torch.__version__}"
    )
    print(f"{'':26}{'median ms':>11}{'min ms':>9}{'x naive':>9}{'x copy':>8}{'bytes kept':>12}")
    for name, row in found.items():
        kept = f"{row['bytes_kept']:12.2f}" if "bytes_kept" in row else f"{'-':>12}"
        print(
            f"{name:26}{row['median_ms']:11.2f}{row['min_ms']:9.2f}{row['to_naive']:9.3f}"
            f"{row['to_copy']:8.2f}{kept}"
        )
    if arguments.out:
        record = {
            "command": "bench_neuron",
            "shape": arguments.shape,
            "threads": arguments.threads,
            "rounds": arguments.rounds,
            "device": arguments.device,
            "machine": platform.machine(),
            "torch": torch.__version__,
            "results": found,
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
