"""The native engine against dense engines: the paper's integer ResNet-20, whole, in one run.

    python benchmarks/bench_inference.py                                    best instruction set
    python benchmarks/bench_inference.py --isas avx2 avx2vnni avx512 avx512vnni amx
    python benchmarks/bench_inference.py --batch 16 --threads 2 --levels stage
    python benchmarks/bench_inference.py --sweep wide --isas avx512vnni     activity 0 to 60 %
    python benchmarks/bench_inference.py --grow --isas avx512vnni           T, N_max, width, batch

The engine runs the whole network. oneDNN runs only the convolutions after the stem, ONNX Runtime
and OpenVINO the same network with ReLUs. Weights and images are random; thresholds are set so that
levels are as sparse as ``--levels`` says: "uniform" (0.151 active everywhere), "stage" (0.24, 0.125
and 0.065 by stage, as in the paper) or "trained" (every layer as in the trained pocket network, an
eighth as wide, on CIFAR-10 test images from ``--data`` or ``$LBQ_DATA/cifar10``). ``--pocket`` adds
that network itself (``--levels`` without a name omits the others). ``--isas`` limits all engines,
each set in its own process (``LBQ_ISA``, ``ONEDNN_MAX_CPU_ISA``), except ONNX Runtime, which has no
such option. Compare the ratios.
"""

import argparse
import os
import platform
import statistics
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from dense_engines import int8_resnet, onednn_runs, onnx_runs, products_agree, products_of
from inference_sweeps import LAYERS, growth, sweep
from measure import ONEDNN_CAPS, Run, interleaved, on_each_isa, write_record
from sparse_networks import (
    BY_STAGE,
    UNIFORM,
    Reached,
    activity_of,
    build,
    by_stage,
    levels_reached,
    make_sparse,
)

from lbq.graph import LoweredNetwork
from lbq.runtime import run_network
from lbq.runtime.native_engine import NativeEngine
from lbq.train.provenance import git_commit

ACTIVITY = {"uniform": UNIFORM, "stage": BY_STAGE}
LEVELS = (*ACTIVITY, "trained")
WATCHED = 200
"""Test images over which the levels of the trained network are counted."""
ENGINE = "engine, measured"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isas", nargs="+", choices=ONEDNN_CAPS, help="each in its own process")
    parser.add_argument("--levels", nargs="*", choices=LEVELS, default=list(ACTIVITY))
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--timesteps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sweep", choices=LAYERS, help="single layers over activity instead")
    parser.add_argument("--grow", action="store_true", help="one setting at a time instead")
    parser.add_argument("--pocket", action="store_true", help="the trained network itself too")
    parser.add_argument("--data", help="CIFAR-10, unless LBQ_DATA names the folder that holds it")
    parser.add_argument("--layers", action="store_true", help="print every stage's time")
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    options = parser.parse_args()
    if options.data is None and "LBQ_DATA" in os.environ:
        options.data = str(Path(os.environ["LBQ_DATA"]) / "cifar10")
    if options.data is None and (options.pocket or "trained" in options.levels):
        parser.error("trained levels need real images: give --data, or set LBQ_DATA")
    return options


def engine_runs(
    net: LoweredNetwork, images: torch.Tensor, threads: int, prefix: str = ""
) -> dict[str, Run]:
    expected, runs = run_network(net, images), dict[str, Run]()
    for choice in ("measured", "events", "dense"):
        engine = NativeEngine(net, choice=choice)
        if not torch.equal(engine.run(images, threads=threads), expected):
            raise SystemExit(f"{prefix}the engine ({choice}) differs from the dense backend")
        runs[f"{prefix}engine, {choice}"] = partial(engine.run, images, threads=threads)
    return runs


def at_sparsity(name: str, options: argparse.Namespace, timesteps: int) -> LoweredNetwork:
    net = build(width=options.width, timesteps=timesteps)
    reached = trained_levels(options.data) if name == "trained" else by_stage(net, ACTIVITY[name])
    torch.manual_seed(1)
    return make_sparse(net, torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8), reached)


@cache
def trained_levels(source: str) -> Reached:
    """Return the levels that the trained pocket network reaches, layer by layer."""
    from lbq_paper.trained_network import pocket_integers  # noqa: PLC0415 -- opens a data set

    return levels_reached(*pocket_integers(source, batch=WATCHED))


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(2)
    images = torch.randint(0, 256, (options.batch, 3, 32, 32), dtype=torch.uint8)
    net = at_sparsity(name, options, options.timesteps)
    products = products_of(net, images)
    runs = engine_runs(net, images, options.threads)
    runs |= onednn_runs(products)
    model = int8_resnet(options.width)
    runs |= onnx_runs(model, options.timesteps * options.batch, options.threads)
    if options.timesteps > 1:  # half the products
        once = NativeEngine(at_sparsity(name, options, 1))
        runs["engine, measured, T=1"] = partial(once.run, images, threads=options.threads)
        ann = onnx_runs(model, options.batch, options.threads)
        runs |= {f"{engine}, ANN": call for engine, call in ann.items()}
    record = timed(runs, options)
    record["onednn_int8_is_exact"] = products_agree(products)
    record["activity"] = activity_of(net, images)
    record["steps"] = steps_of(net, images[:1])
    if options.layers:
        for step in record["steps"]:
            print(f"  {step['path']:32}{1e3 * step['seconds']:9.3f} ms  {step['pair_density']}")
    return record


def pocket(options: argparse.Namespace) -> dict[str, Any]:
    """Compare on the trained pocket network with test images."""
    from lbq_paper.trained_network import WIDTH, pocket_integers  # noqa: PLC0415 -- opens a data set

    net, images = pocket_integers(options.data, batch=options.batch)
    products = products_of(net, images)
    runs = engine_runs(net, images, options.threads) | onednn_runs(products)
    runs |= onnx_runs(int8_resnet(WIDTH), net.timesteps * options.batch, options.threads)
    record = timed(runs, options)
    record["activity"] = activity_of(net, images)
    return record


def steps_of(net: LoweredNetwork, images: torch.Tensor) -> list[dict[str, Any]]:
    engine = NativeEngine(net)
    tries = [engine.time_stages(images) for _ in range(5)]
    return [
        {
            "path": stage.path,
            "seconds": min(one[i].seconds for one in tries),
            "pair_density": stage.pair_density,
            "is_dense": stage.is_dense,
        }
        for i, stage in enumerate(tries[0])
    ]


def timed(runs: dict[str, Run], options: argparse.Namespace) -> dict[str, Any]:
    """Time all runs round by round; a ratio is the median of the rounds' own ratios."""
    with torch.inference_mode():
        times = interleaved(runs, rounds=options.rounds, warmups=2, device="cpu")
    rows: dict[str, Any] = {}
    print(f"{'':34}{'median ms':>11}{'min ms':>9}{'times the engine':>18}{'by minima':>11}")
    for name, taken in times.items():
        ratios = [other / own for other, own in zip(taken, times[ENGINE], strict=True)]
        rows[name] = {
            "median_ms": 1e3 * statistics.median(taken),
            "min_ms": 1e3 * min(taken),
            "times_the_engine": statistics.median(ratios),
            "times_the_engine_min": min(taken) / min(times[ENGINE]),
        }
        row = rows[name]
        print(
            f"{name:34}{row['median_ms']:11.2f}{row['min_ms']:9.2f}"
            f"{row['times_the_engine']:18.2f}{row['times_the_engine_min']:11.2f}"
        )
    return {"runs": rows}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    if options.sweep:
        return {"sweep": sweep(options.sweep, rounds=options.rounds)}
    if options.grow:
        return {"growth": growth(rounds=options.rounds)}
    record: dict[str, Any] = {}
    for name in options.levels:
        print(f"\n{name} levels, T={options.timesteps}, B={options.batch}, width {options.width}")
        record[name] = compare(name, options)
    if options.pocket:
        print("\nthe trained pocket network")
        record["pocket"] = pocket(options)
    return record


def main() -> None:
    options = arguments()
    settings = {
        key: str(value) for key, value in vars(options).items() if key not in ("out", "data")
    }
    record: dict[str, Any] = {"command": "bench_inference", "machine": platform.machine()}
    record["commit"] = git_commit()
    record |= settings
    if not options.isas:
        record["best"] = measure(options)
    for isa, found in on_each_isa(options.isas or ()).items():
        record[isa] = found["best"]
    write_record(options.out, record)


if __name__ == "__main__":
    main()
