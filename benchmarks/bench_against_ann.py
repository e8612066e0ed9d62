r"""Tuned burst networks on the native engine against ReLU networks in int8, by time.

    python benchmarks/bench_against_ann.py --isas avx2 avx512 avx512vnni \
        --out benchmarks/results/against-ann.json

The networks are those that ``lbq_paper.accuracy measure`` kept in ``--folder``, with their seed,
and the pretrained network of two timesteps. ReLU networks are quantised by ONNX Runtime's own tool
(per channel, QDQ, 512 training images) and run by ONNX Runtime and OpenVINO. CIFAR-10 test images
from ``--data`` or ``$LBQ_DATA/cifar10``, one thread, interleaved, batch 1 and 64. ``--isas`` limits
the engine and OpenVINO; ONNX Runtime has no such option.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import ONEDNN_CAPS, interleaved, on_each_isa, write_record

import lbq
from lbq.cli.samples import open_samples, sample_batches
from lbq.runtime.native_engine import NativeEngine
from lbq.train.provenance import git_commit
from lbq_paper.accuracy import calibration, open_tuned
from lbq_paper.checkout import ROOT
from lbq_paper.int8_ann import int8_onnx, onnx_runtime, openvino, without_time
from lbq_paper.trained_network import POCKET, ann_recipe, open_trained

Run = Callable[[Any], object]


def engines(options: argparse.Namespace) -> dict[str, NativeEngine]:
    """Return the burst networks in integers, on the engine."""
    known = open_trained(POCKET, options.data)
    net = lbq.to_fixed_point(known.lowered, pixels=known.pixels, calibration=known.calibration)
    found = {POCKET: NativeEngine(net)}
    samples = calibration(open_data(options))
    for name in options.networks:
        if not name.startswith("ann"):
            model = open_tuned(name, options.seed, options.folder)
            found[name] = NativeEngine(lbq.quantize(model, samples))
    return found


def open_data(options: argparse.Namespace) -> Any:
    """Open CIFAR-10 as the ReLU network takes it."""
    return open_samples(ann_recipe(), source=options.data, cache=Path("~/.cache/lbq"))


def times(options: argparse.Namespace) -> dict[str, Any]:
    """Time all networks on the same images: milliseconds per batch."""
    data = open_data(options)
    samples = calibration(data)
    burst = engines(options)
    dense = {
        name: int8_onnx(without_time(open_tuned(name, options.seed, options.folder)), samples)
        for name in options.networks
        if name.startswith("ann")
    }
    record: dict[str, Any] = {}
    for batch in options.batches:
        images = next(sample_batches(data, limit=batch, batch=batch))
        real = np.ascontiguousarray(images.real.numpy())
        runs: dict[str, Callable[[], object]] = {
            name: partial(engine.run, images.raw, threads=1) for name, engine in burst.items()
        }
        for name, onnx in dense.items():
            ort, ov = onnx_runtime(onnx, threads=1), openvino(onnx, real.shape, threads=1)
            runs[f"{name}, ONNX Runtime"] = partial(ort, real)
            runs[f"{name}, OpenVINO"] = partial(ov, real)
        taken = interleaved(runs, rounds=options.rounds, warmups=3, device="cpu")
        print(f"\nbatch {batch}: ms, median and fastest")
        record[f"batch {batch}"] = rows = {
            name: {"median_ms": 1e3 * float(np.median(t)), "min_ms": 1e3 * min(t)}
            for name, t in taken.items()
        }
        for name, row in rows.items():
            print(f"{name:34}{row['median_ms']:10.3f}{row['min_ms']:10.3f}")
    return record


def main() -> None:
    """Measure, each instruction set in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    folder = ROOT / "results" / "accuracy"
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--networks", nargs="+", help="default: all that the folder holds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--isas", nargs="+", choices=ONEDNN_CAPS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--data", default=str(Path(os.environ.get("LBQ_DATA", ".")) / "cifar10"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept = sorted(options.folder.glob(f"*-{options.seed}.safetensors"))
    options.networks = options.networks or [path.stem.rpartition("-")[0] for path in kept]
    torch.set_num_threads(1)
    if options.isas:
        record = {"commit": git_commit(), "rounds": options.rounds, "seed": options.seed}
        record |= on_each_isa(options.isas)
    else:
        record = times(options)
    write_record(options.out, record)


if __name__ == "__main__":
    main()
