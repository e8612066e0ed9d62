"""Kill lbq-run at random moments: no image is missing, and none is processed twice.

    python tests/faults/killed_batches.py --images 100000 --kills 20 --out results/faults
    python tests/faults/killed_batches.py --images 100000 --pocket     LBQ_DATA names the data

By default a tiny network gets random bytes; ``--pocket`` runs the trained pocket network over
the CIFAR-10 test set, repeated as often as needed. The outputs are compared with the dense backend.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from bundles import tiny_network
from equivalence import engines

import lbq
from lbq.pretrained import pretrained_recipe
from lbq.train.provenance import git_commit

ROOT = Path(__file__).parents[2]


def write_shards(folder, images, shards):
    """Write images to files, .npy and raw in turn; return the image numbers of each file."""
    folder.mkdir()
    places = {}
    for number, place in enumerate(np.array_split(np.arange(len(images)), shards)):
        name = f"{number:05d}.npy" if number % 2 else f"{number:05d}.u8"
        part = images[place[0] : place[-1] + 1]
        if number % 2:
            np.save(folder / name, part)
        else:
            (folder / name).write_bytes(part.tobytes())
        places[name] = place
    return places


def expected_rows(network, images):
    """Return class and logits by the dense backend."""
    parts = []
    for start in range(0, len(images), 1000):
        parts.append(
            lbq.run_network(network, torch.from_numpy(images[start : start + 1000])).numpy()
        )
    logits = np.concatenate(parts).astype(np.int64)
    return np.concatenate([logits.argmax(1)[:, None], logits], axis=1)


def kill_and_finish(program, bundle, folder, out, *, kills, workers, rng):
    """Kill every worker ``kills`` times at random moments, then let one finish."""
    command = [program, bundle, folder, out]
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - start
    shutil.rmtree(out)
    done = half_written = 0
    while done < kills:
        jobs = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(workers)]
        time.sleep(rng.uniform(0, 1.5 * whole / kills))
        for job in jobs:
            job.send_signal(signal.SIGKILL)
        codes = [job.wait() for job in jobs]
        if 0 in codes:  # it finished before it was killed: start again
            shutil.rmtree(out)
            continue
        assert set(codes) <= {-signal.SIGKILL, 75}, codes
        done += 1
        half_written += bool(list(out.glob(".*.tmp")))
    subprocess.run(command, check=True, capture_output=True)
    return {"kills": done, "kills_inside_of_a_file": half_written}


def check_complete(out, places, expected):
    """Fail unless every image has exactly one row, the expected one."""
    names = {path.name for path in out.iterdir()}
    assert names == {"bundle.digest"} | {f"{name}.csv" for name in places}, "files"
    answered = 0
    for name, place in places.items():
        rows = np.loadtxt(out / f"{name}.csv", delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
        assert rows[:, 0].tolist() == list(range(len(place))), f"{name}: samples"
        assert np.array_equal(rows[:, 1:], expected[place]), f"{name}: integers"
        answered += len(rows)
    return answered


def trial(program, network, images, place, *, shards, kills, repeats=1, workers=2, seed=0):
    """Run one trial in a folder, over repeated images; return the numbers."""
    expected = np.concatenate([expected_rows(network, images)] * repeats)
    images = np.concatenate([images] * repeats)
    lbq.save_network(network, place / "net.lbq")
    places = write_shards(place / "in", images, shards)
    rng, out = random.Random(seed), place / "out"
    found = kill_and_finish(
        program, place / "net.lbq", place / "in", out, kills=kills, workers=workers, rng=rng
    )
    answered = check_complete(out, places, expected)
    assert answered == len(images)
    return {"images": answered, "shards": shards, "workers": workers, **found}


def pocket():
    """Return the trained pocket network in integers, and real images."""
    model, recipe = lbq.load_pretrained("pocket-cifar10"), pretrained_recipe("pocket-cifar10")
    data = Path(os.environ["LBQ_DATA"]) / "cifar10"
    pixels, images = engines.cifar10_bytes(data, 10_000, recipe)
    normalization = recipe.data.augment.normalization
    given = lbq.Pixels(mean=normalization.mean, std=normalization.std)
    some = images[:256]
    lowered = lbq.lower(model, some)
    return lbq.to_fixed_point(lowered, bits=8, pixels=given, calibration=some), pixels.numpy()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=100_000, help="with --pocket, in 10,000s")
    parser.add_argument("--shards", type=int, default=500)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pocket", action="store_true", help="the trained network, real images")
    parser.add_argument("--program", type=Path, default=ROOT / ".build-native/plain/lbq-run")
    parser.add_argument("--out", type=Path, help="folder for the record")
    options = parser.parse_args()
    if options.pocket:
        network, images = pocket()
        images = images[: options.images]
    else:
        network = tiny_network()
        images = np.random.default_rng(0).integers(0, 256, (options.images, 2, 5, 5), np.uint8)
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        found = trial(
            options.program,
            network,
            images,
            Path(folder),
            repeats=options.images // len(images),
            shards=options.shards,
            kills=options.kills,
        )
    record = {
        "fault": "lbq-run killed",
        "network": "pocket" if options.pocket else "tiny",
        **found,
        "seconds": round(time.time() - start),
        "date": time.strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    text = json.dumps(record, indent=1) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"lbq-run-{record['network']}.json").write_text(text)


if __name__ == "__main__":
    main()
