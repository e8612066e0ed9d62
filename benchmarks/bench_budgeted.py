r"""Burst networks on the native engine against the ReLU network of the same shape in int8.

    python benchmarks/bench_budgeted.py --isas avx2 avx512 avx512vnni \
        --out benchmarks/results/budgeted.json

The burst networks are pretrained ones in 8 bits. The ReLU network is the trained one in
results/training, quantised by ONNX Runtime's own tool (per channel, QDQ, 512 training images) and
run by ONNX Runtime and OpenVINO. Times: CIFAR-10 test images from ``--data`` or
``$LBQ_DATA/cifar10``, one thread, interleaved, batch 1 and 64. Accuracies: all 10,000 test images,
in integers. ``--isas`` limits the engine and OpenVINO; ONNX Runtime has no such option.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_inference import timed
from dense_engines import int8_onnx, onnx_runtime, openvino
from measure import ONEDNN_CAPS, on_each_isa, write_record
from torch import Tensor, nn

import lbq
from lbq.cli.samples import sample_batches
from lbq.cost.energy import HAN_2016, HOROWITZ_2014
from lbq.pretrained import pretrained_names
from lbq.runtime.native_engine import NativeEngine
from lbq.time import ImagesIn
from lbq.train.provenance import git_commit
from lbq_paper.trained_network import Trained, open_trained, trained_ann

CALIBRATION = 512
COUNTED = 1_000
"""Test images over which operations are counted."""
MEMORIES = (
    (HAN_2016, HAN_2016.sram),
    (HOROWITZ_2014, HOROWITZ_2014.sram),
    (HOROWITZ_2014, "DRAM"),
)
TIMED_FIRST = "engine, measured"
"""The name that ``timed`` divides by."""


def without_time(ann: nn.Module) -> nn.Module:
    """Remove the axis of time, which a dense engine would reshape for at every layer."""
    images = torch.randn(2, 3, 32, 32)
    expected = ann(images)
    for path, module in list(ann.named_modules()):
        if isinstance(module, lbq.OverTime):
            ann.set_submodule(path, nn.Sequential(*module))
        elif isinstance(module, lbq.RepeatOverTime | lbq.MeanOverTime | ImagesIn):
            ann.set_submodule(path, nn.Identity())
    torch.testing.assert_close(ann(images), expected)
    return ann


def open_networks(options: argparse.Namespace) -> tuple[list[Trained], dict[str, NativeEngine]]:
    """Return the burst networks, and the engine that runs each of them."""
    found = [open_trained(name, options.data, calibration=CALIBRATION) for name in options.networks]
    integers = [
        lbq.to_fixed_point(t.lowered, pixels=t.pixels, calibration=t.calibration) for t in found
    ]
    engines = {
        name: NativeEngine(net) for name, net in zip(options.networks, integers, strict=True)
    }
    return found, engines


def times(options: argparse.Namespace) -> dict[str, Any]:
    """Time all networks on the same images."""
    trained, engines = open_networks(options)
    model = int8_onnx(without_time(trained_ann()), trained[0].calibration)
    record: dict[str, Any] = {}
    for batch in options.batches:
        samples = next(sample_batches(trained[0].data, limit=batch, batch=batch))
        real = np.ascontiguousarray(samples.real.numpy())
        runs: dict[str, Callable[[], object]] = {
            name if n else TIMED_FIRST: partial(engine.run, samples.raw, threads=1)
            for n, (name, engine) in enumerate(engines.items())
        }
        runs["int8 ANN, ONNX Runtime"] = partial(onnx_runtime(model, threads=1), real)
        runs["int8 ANN, OpenVINO"] = partial(openvino(model, real.shape, threads=1), real)
        print(f"\nbatch {batch}; the engine runs {options.networks[0]}")
        record[f"batch {batch}"] = timed(runs, options)["runs"]
    return record


def counts(options: argparse.Namespace) -> dict[str, Any]:
    """Count right answers in integers, and operations."""
    trained, engines = open_networks(options)
    model = int8_onnx(without_time(trained_ann()), trained[0].calibration)
    energies: dict[str, Any] = {}
    for name, known in zip(options.networks, trained, strict=True):
        samples = next(sample_batches(known.data, limit=COUNTED, batch=COUNTED))
        energies[name] = energy(known.model, samples.real)
    return {"accuracy": accuracies(options, trained[0].data, engines, model), "energy": energies}


def energy(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Return counts per image, and microjoules with memory beside those of the ANN's products."""
    with torch.inference_mode():
        table = lbq.count_ops(model, images)
    count = table.num_images
    found: dict[str, Any] = {
        "bit_sparse_acs": table.total().bit_sparse_acs / count,
        "unary_acs": table.total().unary_acs / count,
        "fp_macs": table.fp_macs() / count,
        "ann_macs": table.ann_macs(),
        "active": table.active_ratio(),
    }
    for technology, memory in MEMORIES:
        report = lbq.EnergyModel(technology=technology).estimate(table)
        for sums in ("int8, 32-bit sums", "int4, 32-bit sums"):
            rows = (report[sums], report[memory])
            found[f"{sums}, {memory}, uJ"] = {
                "burst": 1e3 * sum(row.burst_mj for row in rows),
                "ann": 1e3 * sum(row.ann_mj for row in rows),
            }
    return found


def accuracies(
    options: argparse.Namespace, data: Any, engines: dict[str, NativeEngine], model: bytes
) -> dict[str, float]:
    """Return the share of right answers of every engine on the test images."""
    batch = 500
    shape = (batch, 3, 32, 32)
    run_ort, run_ov = onnx_runtime(model, threads=1), openvino(model, shape, threads=1)
    right = dict.fromkeys([*engines, "int8 ANN, ONNX Runtime", "int8 ANN, OpenVINO"], 0)
    count = 0
    for raw, real, target in _test_batches(data, batch, options.images):
        count += len(target)
        for name, engine in engines.items():
            right[name] += int((engine.run(raw, threads=1).argmax(1) == target).sum())
        for name, run in (("int8 ANN, ONNX Runtime", run_ort), ("int8 ANN, OpenVINO", run_ov)):
            right[name] += int((run(real).argmax(1) == target.numpy()).sum())
    for name, correct in right.items():
        print(f"{name:34}{correct / count:10.2%} of {count}")
    return {name: correct / count for name, correct in right.items()}


def _test_batches(data: Any, batch: int, limit: int) -> Iterator[tuple[Tensor, np.ndarray, Tensor]]:
    for samples in sample_batches(data, limit=limit, batch=batch):
        yield samples.raw, np.ascontiguousarray(samples.real.numpy()), samples.target


def main() -> None:
    """Measure, each instruction set in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    networks = [name for name in pretrained_names() if name.startswith("pocket")]
    parser.add_argument("--networks", nargs="+", choices=networks)
    parser.add_argument("--isas", nargs="+", choices=ONEDNN_CAPS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--images", type=int, default=10_000, help="for the accuracies")
    parser.add_argument("--data", default=str(Path(os.environ.get("LBQ_DATA", ".")) / "cifar10"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.networks = options.networks or ["pocket-budget-cifar10", "pocket-cifar10"]
    torch.set_num_threads(1)
    if options.isas:
        record = {"commit": git_commit(), "rounds": options.rounds}
        record |= counts(options) | on_each_isa(options.isas)
    else:
        record = times(options)
    write_record(options.out, record)


if __name__ == "__main__":
    main()
