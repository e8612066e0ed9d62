r"""Burst networks on the native engine against the ReLU network of the same shape in int8.

    python benchmarks/bench_budgeted.py --isas avx2 avx512 avx512vnni \
        --out benchmarks/results/budgeted.json

The burst networks are pretrained ones in 8 bits. The ReLU network is the trained one in
results/training, quantised by ONNX Runtime's own tool (per channel, QDQ, 512 training images) and
run by ONNX Runtime and OpenVINO. Times: CIFAR-10 test images from ``--data`` or
``$LBQ_DATA/cifar10``, one thread, interleaved, batch 1 and 64. Accuracies: all 10,000 test images,
in integers. ``--isas`` limits the engine (``LBQ_ISA``) and OpenVINO (``ONEDNN_MAX_CPU_ISA``), each
set in a process of its own; ONNX Runtime has no such option.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_inference import ONEDNN_CAPS, timed
from safetensors.torch import load_file
from torch import Tensor, nn
from trained_network import open_trained

import lbq
from lbq.cli.samples import sample_batches
from lbq.cost.energy import HAN_2016, HOROWITZ_2014
from lbq.deploy.native_engine import NativeEngine
from lbq.models.time import ImagesIn
from lbq.pretrained import pretrained_names
from lbq.train import build_network
from lbq.train.provenance import git_commit
from lbq.train.recipe import recipe_from_document

ANN = Path(__file__).parents[1] / "results" / "training" / "pocket-ann"
CALIBRATION = 512
COUNTED = 1_000
"""Test images over which operations are counted."""
TIMED_FIRST = "engine, measured"
"""The name that ``timed`` divides by."""


def trained_ann() -> nn.Module:
    """Return the trained ReLU network."""
    recipe = recipe_from_document(json.loads(ANN.with_suffix(".json").read_text())["recipe"])
    ann = build_network(recipe.model, num_classes=10)
    ann.load_state_dict(load_file(ANN.with_suffix(".safetensors")))
    return without_time(ann.eval())


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


def int8_onnx(ann: nn.Module, images: Tensor) -> bytes:
    """Return the network as an ONNX model of any batch that ONNX Runtime's tool quantised."""
    from onnxruntime.quantization import (  # noqa: PLC0415 -- an extra
        CalibrationDataReader,
        QuantFormat,
        quantize_static,
    )
    from onnxruntime.quantization.preprocess import quant_pre_process  # noqa: PLC0415

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = list(images.split(64))

        def get_next(self) -> dict[str, Any] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"images": self.left.pop().numpy()} if self.left else None

    with tempfile.TemporaryDirectory() as folder:
        real, ready, done = (str(Path(folder) / f"{n}.onnx") for n in ("real", "ready", "done"))
        torch.onnx.export(
            ann,
            (images[:2],),
            real,
            input_names=["images"],
            dynamic_axes={"images": {0: "batch"}},
            dynamo=False,
            opset_version=17,
        )
        quant_pre_process(real, ready, skip_symbolic_shape=True)
        quantize_static(ready, done, Images(), quant_format=QuantFormat.QDQ, per_channel=True)
        return Path(done).read_bytes()


def onnx_runtime(model: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """Return the model in ONNX Runtime with one thread."""
    import onnxruntime  # noqa: PLC0415 -- an extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images})[0]  # pyright: ignore


def openvino(model: bytes, batch: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the model in OpenVINO with one thread, compiled for one size of batch."""
    import openvino as ov  # noqa: PLC0415 -- an extra

    core = ov.Core()
    read = core.read_model(model, b"")
    read.reshape([batch, 3, 32, 32])
    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    return lambda images: request.infer({0: images})[0]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time all networks on the same images; count right answers if asked for."""
    torch.set_num_threads(1)
    engines: dict[str, NativeEngine] = {}
    energies: dict[str, Any] = {}
    for name in options.networks:
        known = open_trained(name, options.data, calibration=CALIBRATION)
        net = lbq.to_fixed_point(known.lowered, pixels=known.pixels, calibration=known.calibration)
        engines[name] = NativeEngine(net)
        if options.accuracy:
            samples = next(sample_batches(known.data, limit=COUNTED, batch=COUNTED))
            energies[name] = energy(known.model, samples.real)
    model = int8_onnx(trained_ann(), known.calibration)
    record: dict[str, Any] = {}
    for batch in options.batches:
        samples = next(sample_batches(known.data, limit=batch, batch=batch))
        real = np.ascontiguousarray(samples.real.numpy())
        runs: dict[str, Callable[[], object]] = {
            name if n else TIMED_FIRST: partial(engine.run, samples.raw, threads=1)
            for n, (name, engine) in enumerate(engines.items())
        }
        runs["int8 ANN, ONNX Runtime"] = partial(onnx_runtime(model), real)
        runs["int8 ANN, OpenVINO"] = partial(openvino(model, batch), real)
        print(f"\nbatch {batch}; the engine runs {options.networks[0]}")
        record[f"batch {batch}"] = timed(runs, options)["runs"]
    if options.accuracy:
        record["accuracy"] = accuracies(options, known.data, engines, model)
        record["energy"] = energies
    return record


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
    for technology in (HAN_2016, HOROWITZ_2014):
        report = lbq.EnergyModel(technology=technology).estimate(table)
        for memory in (technology.sram, "DRAM"):
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
    run_ort, run_ov = onnx_runtime(model), openvino(model, batch)
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
    parser.add_argument("--accuracy", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.networks = options.networks or ["pocket-budget-cifar10", "pocket-cifar10"]
    if options.part or not options.isas:
        options.accuracy |= not options.part
        record = measure(options)
    else:
        record = {"commit": git_commit(), "rounds": options.rounds}
        for isa in options.isas:
            print(f"\n== {isa}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "part.json"
                line = [sys.executable, __file__, "--part", "--out", str(out)]
                line += ["--data", options.data, "--rounds", str(options.rounds)]
                line += ["--images", str(options.images), "--networks", *options.networks]
                line += ["--batches", *map(str, options.batches)]
                line += ["--accuracy"] if isa == options.isas[-1] else []
                capped = {**os.environ, "LBQ_ISA": isa, "ONEDNN_MAX_CPU_ISA": ONEDNN_CAPS[isa]}
                subprocess.run(line, env=capped, check=True)  # noqa: S603 -- ourselves
                record[isa] = json.loads(out.read_text())
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
