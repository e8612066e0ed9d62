r"""Images per second of the CIFAR-10 test set on two cores, against OpenVINO in throughput mode.

    python benchmarks/bench_throughput.py --lbq-run build/lbq-run \
        --out benchmarks/results/throughput.json

The engine runs pretrained networks in 8 bits: from Python in batches, and as ``lbq-run`` on one
file of all images, program start, bundle and answers included. The ReLU network of the same shape
in int8 runs on OpenVINO as it recommends for throughput (requests in flight, one stream per core,
batches of 1 and of ``--batch``) and on ONNX Runtime. Rounds are interleaved; wall time.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import interleaved, write_record

import lbq
from lbq.cli.samples import sample_batches
from lbq.runtime.native_engine import NativeEngine
from lbq.train.provenance import git_commit
from lbq_paper.int8_ann import int8_onnx, onnx_runtime, openvino_throughput, without_time
from lbq_paper.trained_network import Trained, open_trained, trained_ann


def in_batches(run: Callable[[Any], object], images: Any, batch: int) -> None:
    """Run all images, a batch at a time."""
    for first in range(0, len(images), batch):
        run(images[first : first + batch])


def with_program(program: Path, bundle: Path, images: Path, threads: int) -> None:
    """Run lbq-run on one file and keep no answers."""
    with tempfile.TemporaryDirectory() as answers:
        command = [program, bundle, images.parent, answers, "--threads", str(threads)]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 -- our program


def main() -> None:
    """Measure and print images per second."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lbq-run", type=Path, help="the built program; else it is left out")
    parser.add_argument(
        "--networks", nargs="+", default=["pocket-budget-cifar10", "pocket-cifar10"]
    )
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--data", default=str(Path(os.environ.get("LBQ_DATA", ".")) / "cifar10"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    trained = [open_trained(name, options.data) for name in options.networks]
    samples = next(sample_batches(trained[0].data, limit=options.images, batch=options.images))
    real = np.ascontiguousarray(samples.real.numpy())
    model = int8_onnx(without_time(trained_ann()), trained[0].calibration)
    with tempfile.TemporaryDirectory() as name:
        runs = engine_runs(trained, samples.raw, Path(name), options)
        ort = onnx_runtime(model, threads=options.threads)
        runs["int8 ANN, ONNX Runtime"] = partial(in_batches, ort, real, options.batch)
        for batch in (1, options.batch):
            queue = openvino_throughput(model, batch=batch, threads=options.threads)
            runs[f"int8 ANN, OpenVINO, batch {batch}"] = partial(queue, real)
        times = interleaved(runs, rounds=options.rounds, warmups=1, device="cpu")
    dense = [name for name in runs if name.startswith("int8 ANN")]
    best = min(dense, key=lambda name: statistics.median(times[name]))
    print(f"{options.images} images, {options.threads} threads; fastest ANN: {best}")
    print(f"{'':40}{'images/s':>10}{'best':>10}{'x fastest ANN':>15}{'by minima':>11}")
    rows: dict[str, dict[str, float]] = {}
    for name, taken in times.items():
        row = rows[name] = {
            "images_per_s": options.images / statistics.median(taken),
            "best_images_per_s": options.images / min(taken),
            "to_ann": statistics.median(b / a for a, b in zip(taken, times[best], strict=True)),
            "to_ann_min": min(times[best]) / min(taken),
        }
        print(
            f"{name:40}{row['images_per_s']:10.0f}{row['best_images_per_s']:10.0f}"
            f"{row['to_ann']:15.2f}{row['to_ann_min']:11.2f}"
        )
    settings = {key: getattr(options, key) for key in ("images", "batch", "threads", "rounds")}
    record = {"commit": git_commit(), **settings, "fastest_ann": best, "runs": rows}
    write_record(options.out, record)


def engine_runs(
    trained: list[Trained], raw: torch.Tensor, folder: Path, options: argparse.Namespace
) -> dict[str, Callable[[], object]]:
    """Return every network from Python, and through lbq-run if it was given."""
    images = folder / "images" / "all.npy"
    images.parent.mkdir()
    np.save(images, raw.numpy())
    runs: dict[str, Callable[[], object]] = {}
    for name, known in zip(options.networks, trained, strict=True):
        net = lbq.to_fixed_point(known.lowered, pixels=known.pixels, calibration=known.calibration)
        run = partial(NativeEngine(net).run, threads=options.threads)
        runs[f"{name}, Python"] = partial(in_batches, run, raw, options.batch)
        if options.lbq_run:
            bundle = folder / f"{name}.lbq"
            lbq.save_network(net, bundle)
            program = options.lbq_run.resolve()
            runs[f"{name}, lbq-run"] = partial(
                with_program, program, bundle, images, options.threads
            )
    return runs


if __name__ == "__main__":
    main()
