"""Exported ResNet-20s in ONNX Runtime and OpenVINO: every style, batch 1 and 16, in one run.

    python benchmarks/bench_onnx.py                              paper's width
    python benchmarks/bench_onnx.py --width 0.0625 --rounds 3    a quick look

Weights are random, since time does not depend on them (``compare_onnx.py`` uses trained ones).
Levels that differ from ``lbq.runtime.run`` are counted for every file. Runs are interleaved:
compare the ratios.
"""

import argparse
import platform
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Run, interleaved, write_record

import lbq
from lbq.errors import LBQError
from lbq.formats import OnnxRunner, export_onnx
from lbq.formats.onnx.run import Engine
from lbq.graph import LoweredNetwork
from lbq.lowering import lower, to_fixed_point
from lbq.preprocessing import Pixels
from lbq.runtime import run_network

ENGINES: tuple[Engine, ...] = ("onnxruntime", "openvino")
MEAN, STD = (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)


def build(width: float, timesteps: int) -> LoweredNetwork:
    torch.manual_seed(0)
    model = lbq.resnet20(10, timesteps=timesteps, width=width)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.bias, 0, 0.3)
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 32, 32))  # statistics that let neurons fire
    return lower(model.eval(), torch.zeros(1, 3, 32, 32))


def num_different(net: LoweredNetwork, file: Path, inputs: torch.Tensor) -> dict[str, str]:
    """Count the levels that differ from ours, and all levels, for every engine."""
    seen: dict[str, list[torch.Tensor]] = {}
    run_network(net, inputs, watch=lambda layer, t, x: seen.setdefault(layer, []).append(x))
    expected = {layer: torch.stack(levels).numpy() for layer, levels in seen.items()}
    total = sum(levels.size for levels in expected.values())
    counts: dict[str, str] = {}
    for engine in ENGINES:
        got = OnnxRunner(file, engine=engine, threads=1).run_all(inputs.numpy())
        different = sum(int((got[layer] != expected[layer]).sum()) for layer in expected)
        counts[engine] = f"{different} of {total}"
    return counts


def files(folder: Path, width: float, timesteps: int, bits: int) -> dict[str, dict[str, Any]]:
    """Export every style that supports the network."""
    real = build(width, timesteps)
    raw = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    images = (raw / 255 - mean) / std
    integers = to_fixed_point(real, bits=bits, pixels=Pixels(mean=MEAN, std=STD))  # type: ignore[arg-type]
    found: dict[str, dict[str, Any]] = {}
    for name, net, inputs, style in (
        ("float32", real, images, "exact"),
        ("exact", integers, raw, "exact"),
        ("fast", integers, raw, "fast"),
        ("int8", integers, raw, "int8"),
        ("int8-lossy", integers, raw, "int8-lossy"),
    ):
        path, watched = folder / f"{name}.onnx", folder / f"{name}-levels.onnx"
        try:
            export_onnx(net, path, style=style)
            export_onnx(net, watched, style=style, outputs_levels=True)
        except LBQError as error:
            print(f"{name}: {error}")
            continue
        different = num_different(net, watched, inputs)
        found[name] = {"path": path, "inputs": inputs, "different": different}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--timesteps", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    record: dict[str, Any] = {"command": "bench_onnx", "machine": platform.machine()}
    record |= {key: value for key, value in vars(arguments).items() if key != "out"}
    for timesteps in arguments.timesteps:
        with tempfile.TemporaryDirectory() as folder:
            found = files(Path(folder), arguments.width, timesteps, arguments.bits)
            runners = {
                (name, engine): OnnxRunner(file["path"], engine=engine, threads=arguments.threads)
                for name, file in found.items()
                for engine in ENGINES
            }
            for batch in arguments.batches:
                runs: dict[str, Run] = {
                    f"{name}, {engine}": partial(runner, found[name]["inputs"][:batch].numpy())
                    for (name, engine), runner in runners.items()
                }
                times = interleaved(runs, rounds=arguments.rounds, warmups=2, device="cpu")
                print(f"\nwidth {arguments.width}, T={timesteps}, B={batch}, {arguments.bits} bits")
                print(f"{'':24}{'median ms':>11}{'min ms':>9}{'levels that differ':>28}")
                rows: dict[str, Any] = {}
                for row, taken in times.items():
                    name, engine = row.split(", ")
                    rows[row] = {
                        "median_ms": 1e3 * statistics.median(taken),
                        "min_ms": 1e3 * min(taken),
                        "different": found[name]["different"][engine],
                    }
                    print(
                        f"{row:24}{rows[row]['median_ms']:11.2f}{rows[row]['min_ms']:9.2f}"
                        f"{rows[row]['different']:>28}"
                    )
                record[f"T={timesteps}, B={batch}"] = rows
    write_record(arguments.out, record)


if __name__ == "__main__":
    main()
