"""Labelling images with Ray Data: one worker, two workers, and lbq-run on the same cores.

    python benchmarks/bench_ray.py --images 100000 --out benchmarks/results/ray.json
    python benchmarks/bench_ray.py --kills 20 --out benchmarks/results/ray-kills.json

The pocket network labels CIFAR-10, training and test images, repeated from the start if more than
60,000 are requested. Every job runs examples/label_with_ray.py's ``label`` in one Ray session;
every row it writes is compared with ``lbq.run_network``. A rate counts the rows from the first
answers of all workers to the last answer: workers take some seconds to start, which is recorded
separately and does not grow with the images. lbq-run runs as two processes that share a folder; its
rate is that of the whole run.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from cifar10 import MEAN, STD, read_cifar10, read_cifar10_bytes
from measure import write_record
from pyarrow import parquet

import lbq

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "examples"), str(ROOT / "tests" / "faults")]
import label_with_ray  # noqa: E402 -- an example and a test helper are no packages
import ray_jobs  # noqa: E402

FILES = 100
BLOCK_MB = 2.9


class TimedPredictor(lbq.Predictor):
    """Notes when every batch was done, and by whom."""

    def __call__(self, batch: Any) -> Any:
        """Add the columns time and worker."""
        answer = super().__call__(batch)
        rows = len(answer["class"])
        answer["time"] = np.full(rows, time.time())
        answer["worker"] = np.full(rows, os.getpid())
        return answer


def prepare(folder: Path, count: int) -> None:
    """Write bundle, images in both formats and the expected logits, unless they are there."""
    if (folder / "expected.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = lbq.load_pretrained("pocket-cifar10")
    some, _ = read_cifar10("train", 512)
    given = lbq.Pixels(mean=MEAN, std=STD)
    net = lbq.to_fixed_point(lbq.lower(model, some[:1]), pixels=given, calibration=some)
    lbq.save_network(net, folder / "net.lbq")
    splits = [read_cifar10_bytes(split, count)[0] for split in ("train", "test")]
    unique = torch.cat(splits)[:count]
    logits = torch.cat([lbq.run_network(net, part) for part in unique.split(1000)]).numpy()
    place = np.arange(count) % len(unique)
    images = unique.numpy()[place]
    ray_jobs.write_images(folder / "images", images, files=FILES)
    (folder / "arrays").mkdir()
    for number, part in enumerate(np.array_split(images, FILES)):
        np.save(folder / "arrays" / f"{number:05d}.npy", part)
    np.save(folder / "expected.npy", logits[place])


def with_ray(folder: Path, out: Path, workers: int) -> dict[str, float]:
    """Label all images; return images per second, and the seconds before and overall."""
    start = time.time()
    label_with_ray.label(
        folder / "net.lbq",
        folder / "images",
        out,
        workers=workers,
        block_mb=BLOCK_MB,
        predictor=TimedPredictor,
    )
    end = time.time()
    ray_jobs.check_labels(out, np.load(folder / "expected.npy"))
    table = parquet.read_table(out, columns=["time", "worker"])
    times, pids = table["time"].to_numpy(), table["worker"].to_numpy()
    begin = max(times[pids == pid].min() for pid in np.unique(pids))
    rate = float((times > begin).sum() / (times.max() - begin))
    return {"images_per_s": rate, "start_s": float(begin - start), "whole_s": end - start}


def with_lbq_run(program: Path, folder: Path, out: Path, workers: int) -> dict[str, float]:
    """Label all images; return images per second."""
    start = time.time()
    command = [program, folder / "net.lbq", folder / "arrays", out, "--format", "npy"]
    jobs = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(workers)]  # noqa: S603
    codes = [job.wait() for job in jobs]
    seconds = time.time() - start
    if not set(codes) <= {0, 75}:  # 75: the other one still had some files
        sys.exit(f"lbq-run ended with {codes}")
    rows = np.concatenate([np.load(path) for path in sorted(out.glob("*.npy"))])
    assert np.array_equal(rows[:, 1:], np.load(folder / "expected.npy")), "integers"
    return {"images_per_s": len(rows) / seconds, "whole_s": seconds}


def compare(folder: Path, program: Path, rounds: int, earlier: Any) -> dict[str, Any]:
    """Run all variants once per round; return all rounds and the medians of their ratios."""
    runs = {
        "ray, 1 worker": lambda out: with_ray(folder, out, 1),
        "ray, 2 workers": lambda out: with_ray(folder, out, 2),
        "lbq-run, 2 processes": lambda out: with_lbq_run(program, folder, out, 2),
    }
    found: dict[str, list[dict[str, float]]] = earlier or {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            out = folder / "out"
            shutil.rmtree(out, ignore_errors=True)
            found[name].append(run(out))
            print(name, found[name][-1], flush=True)
    one, two, native = ([run["images_per_s"] for run in runs] for runs in found.values())
    return {
        "rounds": found,
        "two_workers_over_one": statistics.median(np.divide(two, one).tolist()),
        "ray_over_lbq_run": statistics.median(np.divide(two, native).tolist()),
    }


def kill_workers(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill one of two workers at random moments; every job must still be complete."""
    dice, done, jobs = random.Random(seed), 0, 0  # noqa: S311 -- moments, no secrets
    while done < kills:
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        over = threading.Event()

        def kill(out: Path = out, over: threading.Event = over) -> None:
            nonlocal done
            while done < kills and not over.wait(dice.uniform(1, 4)):
                if any(out.glob("*.parquet")) and ray_jobs.kill_one(os.getpid(), dice):
                    done += 1
                    print(f"kill {done}, {len(list(out.glob('*')))} files written", flush=True)

        killer = threading.Thread(target=kill)
        killer.start()
        result = with_ray(folder, out, 2)
        over.set()
        killer.join()
        jobs += 1
        print(f"job {jobs}: every row once, {result}", flush=True)
    return {"kills": done, "jobs": jobs, "every_row_once": True, "same_integers": True}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kills", type=int, help="kill this many workers instead of timing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", type=Path, default=ROOT / ".build-native/plain/lbq-run")
    parser.add_argument("--folder", type=Path, help="keeps images and expected logits")
    parser.add_argument("--prepare", action="store_true", help="only write images and logits")
    parser.add_argument("--out", type=Path, help="rounds are added to those of a record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / str(options.images)
        prepare(folder, options.images)
        if options.prepare:
            return
        ray.init(num_cpus=3, include_dashboard=False)
        ray.cloudpickle.register_pickle_by_value(label_with_ray)  # workers cannot import it
        record: dict[str, Any] = {
            "network": "pocket-cifar10",
            "images": options.images,
            "block_mb": BLOCK_MB,
            "isa": lbq.Predictor(folder / "net.lbq").isa,
            "ray": ray.__version__,
            "cores": os.cpu_count(),
        }
        if options.kills:
            record |= kill_workers(folder, options.kills, options.seed)
        else:
            is_begun = options.out is not None and options.out.exists()
            earlier = json.loads(options.out.read_text())["rounds"] if is_begun else None
            record |= compare(folder, options.program, options.rounds, earlier)
    print(json.dumps(record, indent=1))
    write_record(options.out, record)


if __name__ == "__main__":
    main()
