"""One training step of the paper's ResNet-20 against the same network as an ANN, in one run.

    python benchmarks/bench_engine.py                         paper's width, both precisions
    python benchmarks/bench_engine.py --width 0.125 --batch 32 --rounds 15

The ANN is the bare engine: ReLUs in place of neurons on the same ``T * B`` images (the stem runs
once on both sides). Steps are interleaved; look at the ratios. Let glibc keep its pages, or page
faults drown the rest:

    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=17179869184 python benchmarks/...
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lbq
from lbq.kernels import forcing, native, triton

Step = Callable[[], None]


def step_of(
    neuron: str, *, width: float, timesteps: int, batch: int, device: str, half: bool
) -> Step:
    """Build a network and return one training step of it (without the optimizer)."""
    torch.manual_seed(0)
    builders = {
        "ANN": lambda channels: nn.ReLU(),
        "binary": lambda channels: lbq.neurons.BinaryLIF(),
    }
    model = lbq.resnet20(10, timesteps=timesteps, width=width, neuron=builders.get(neuron))
    images, target = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    model, images, target = model.to(device), images.to(device), target.to(device)
    if half:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            loss = F.cross_entropy(model(images).float(), target)
        loss.backward()
        model.zero_grad()

    def plain_step() -> None:
        with forcing("plain"):
            step()

    return plain_step if neuron == "LBQ, plain torch" else step


def bytes_kept(step: Step) -> int:
    """Bytes that wait for the backward, each storage counted once."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(storage.nbytes() for storage in kept.values())


def measure(variants: dict[str, Step], rounds: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, step in variants.items():
            start = time.perf_counter()
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - start)
    kept = {name: bytes_kept(step) for name, step in variants.items()}
    ann = times["ANN"]
    return {
        name: {
            "median_ms": 1e3 * statistics.median(found),
            "min_ms": 1e3 * min(found),
            "to_ann": statistics.median(a / b for a, b in zip(found, ann, strict=True)),
            "kept_to_ann": kept[name] / kept["ANN"],
        }
        for name, found in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--timesteps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bf16 channels_last"])
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = ["ANN", "LBQ, plain torch", "binary"]
    if arguments.device == "cpu" and native.isa():
        names.insert(1, "LBQ, native")
    if arguments.device == "cuda" and triton.kernels():
        names.insert(1, "LBQ, triton")
    record = {"command": "bench_engine", "machine": platform.machine(), "torch": torch.__version__}
    record |= {key: value for key, value in vars(arguments).items() if key != "out"}
    for precision in arguments.precisions:
        variants = {
            name: step_of(
                name,
                width=arguments.width,
                timesteps=arguments.timesteps,
                batch=arguments.batch,
                device=arguments.device,
                half=precision != "float32",
            )
            for name in names
        }
        record[precision] = found = measure(variants, arguments.rounds)
        print(
            f"\n{precision}, width {arguments.width}, T={arguments.timesteps}, B={arguments.batch}"
        )
        print(f"{'':20}{'median ms':>11}{'min ms':>9}{'x ANN':>8}{'kept x ANN':>12}")
        for name, row in found.items():
            print(
                f"{name:20}{row['median_ms']:11.1f}{row['min_ms']:9.1f}{row['to_ann']:8.3f}"
                f"{row['kept_to_ann']:12.2f}"
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
