"""One neuron, forward and backward, side by side in one run: time ratios and bytes kept.

    python benchmarks/bench_neuron.py                     the figures quoted in the documents
    python benchmarks/bench_neuron.py --threads 2 --out benchmarks/results/neuron_<cpu>_<date>.json

glibc gives large tensors fresh pages at every allocation, which costs more than the neuron
itself; to see the kernels, let it keep them:

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184 python benchmarks/...

Variants are interleaved, so that all of them see the same machine; look at the ratios, not at the
milliseconds. Any implementation must move 24 bytes per neuron-step: the forward reads one float and
writes two, the backward reads two and writes one. The copy beside them moves 28, since torch has no
operation that reads one and writes two.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lbq.kernels import ScanOptions, burst_scan, burst_scan_reference, native, triton
from lbq.kernels.plain import PlainBurstScan

OPTIONS = ScanOptions(max_level=5, lo=1.0, hi=5.0)
DECAY, RESET = 0.5, 1.0

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]


def naive(currents: Tensor, step: Tensor, tail: Tensor) -> Tensor:
    """Write the equations down with ``where``, as one does, and leave the rest to autograd."""
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


def plain(currents: Tensor, step: Tensor, tail: Tensor) -> Tensor:
    decay, reset = (torch.tensor([value], device=step.device) for value in (DECAY, RESET))
    return PlainBurstScan.apply(currents, step, tail, decay, reset, None, OPTIONS)[0]


def bytes_kept(run: Scan, inputs: tuple[Tensor, ...]) -> float:
    """Bytes per neuron-step that wait for the backward, each storage counted once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(*inputs)
    return sum(storage.nbytes() for storage in kept.values()) / inputs[0].numel()


def measure(
    shape: list[int], rounds: int, device: str, compiled: bool
) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    leaf = (0.6 * torch.randn(shape, device=device)).requires_grad_()
    step = torch.tensor([0.3], device=device, requires_grad=True)
    tail = torch.tensor([0.5], device=device, requires_grad=True)
    grad, other = torch.randn(shape, device=device), torch.randn(shape, device=device)
    variants: dict[str, Scan] = {
        "naive loop": naive,
        "reference loop": reference,
        "plain torch": plain,
    }
    if device == "cpu" and native.isa():
        variants[f"native, {native.isa()}"] = scan
    if device == "cuda" and triton.kernels():
        variants["triton"] = scan
    if compiled:
        variants["plain, compiled"] = torch.compile(
            scan, fullgraph=True
        )  # tracers see the plain one
        variants["reference, compiled"] = torch.compile(reference, fullgraph=True)

    def copy() -> None:
        leaf.detach().clone(), leaf.detach().clone()  # one read more than needed
        torch.add(grad, other)

    def train(run: Scan) -> Callable[[], None]:
        def once() -> None:
            torch.autograd.grad(run(leaf, step, tail), (leaf, step, tail), grad)

        return once

    runs = {"copy of 28 bytes": copy} | {name: train(run) for name, run in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 2):
        for name, once in runs.items():
            start = time.perf_counter()
            once()
            if device != "cpu":
                torch.cuda.synchronize()
            if turn >= 2:  # the first two turns compile and warm up
                times[name].append(time.perf_counter() - start)
    naive_ms = statistics.median(times["naive loop"])
    copy_ms = statistics.median(times["copy of 28 bytes"])
    result = {}
    for name, found in times.items():
        median = statistics.median(found)
        result[name] = {
            "median_ms": 1e3 * median,
            "min_ms": 1e3 * min(found),
            "to_naive": median / naive_ms,
            "to_copy": median / copy_ms,
        }
        if name in variants and "compiled" not in name:
            result[name]["bytes_kept"] = bytes_kept(variants[name], (leaf, step, tail))
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
    print(f"{'':24}{'median ms':>11}{'min ms':>9}{'x naive':>9}{'x copy':>8}{'bytes kept':>12}")
    for name, row in found.items():
        kept = f"{row['bytes_kept']:12.2f}" if "bytes_kept" in row else f"{'-':>12}"
        print(
            f"{name:24}{row['median_ms']:11.2f}{row['min_ms']:9.2f}{row['to_naive']:9.3f}"
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
