"""The data path of a set as large as ImageNet: 1.3 million encoded images, two ranks, two workers.

    python benchmarks/bench_large_set.py make PLACE      links and repeated rows of $LBQ_DATA
    python benchmarks/bench_large_set.py open PLACE      opening, first batch, random access
    python benchmarks/bench_large_set.py rate PLACE      images per second of both ranks
    python benchmarks/bench_large_set.py epoch PLACE     memory over an epoch, and a resume

Two sets are made. `folder` has 1,000 classes of 1,300 hard links to the 200 photographs of
imagenet-200 (29 kB, short side 256). `parquet` has 250 links to one file that holds the 1,300
images of imagenette-64px (3 kB) four times. The bytes fit into memory: disks are not measured.
"""

import argparse
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lbq import data
from lbq.data import AugmentConfig, DataConfig
from lbq.data.augment import IMAGENET, augment_images, normalize
from lbq.data.encoded_images import CROP_DRAWS, random_resized_crop, to_bytes
from lbq.data.encoded_images import decode_image as decode
from lbq.data.sampler import RandomStream, random_bits

RANKS, WORKERS, BATCH = 2, 2, 64
SIZES = {"folder": 224, "parquet": 64}
AUGMENT = AugmentConfig(crop="resized", flip=True, normalization=IMAGENET)
LOADERS = ("decode", "lbq", "ImageFolder", "datasets")
fork = multiprocessing.get_context("fork")


def make(place: Path) -> None:
    """Write both sets."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    source = Path(os.environ["LBQ_DATA"])
    (shard,) = (source / "imagenet-200").glob("*.parquet")
    photos = place / "photos"
    photos.mkdir(parents=True)
    for i, cell in enumerate(pq.read_table(shard)["image"].to_pylist()):
        (photos / f"{i}.jpg").write_bytes(cell["bytes"])
    files = sorted(photos.iterdir())
    for split, count in (("train", 1300), ("validation", 1)):
        for label in range(1000):
            folder = place / "folder" / split / f"n{label:05d}"
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i:04d}.jpg").hardlink_to(files[(count * label + i) % len(files)])
    (place / "parquet").mkdir()
    few = source / "imagenette-64px"
    first = place / "parquet" / "train-00000-of-00250.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(next(few.glob("train*")))] * 4), first)
    for i in range(1, 250):
        first.with_name(f"train-{i:05d}-of-00250.parquet").hardlink_to(first)
    test = next(few.glob("validation*"))
    (place / "parquet" / test.name).write_bytes(test.read_bytes())


def open_lbq(place: Path, name: str, size: int | None = None) -> data.Data:
    source, size = str(place / name), size or SIZES[name]
    return data.open_data(DataConfig(source=source, size=size, augment=AUGMENT), place / "cache")


def lbq_batches(opened: data.Data, rank: int, start_step: int = 0) -> Iterator[Any]:
    return data.train_batches(
        opened,
        seed=0,
        epoch=0,
        global_batch=RANKS * BATCH,
        rank=rank,
        world_size=RANKS,
        start_step=start_step,
        num_workers=WORKERS,
    )


def crop_and_normalize(image: Any, size: int) -> torch.Tensor:
    """Apply the transforms of torchvision: random crop, flip, tensor, normalise."""
    bits = np.random.default_rng(int(torch.randint(2**62, ()))).integers(
        0, 2**63, CROP_DRAWS, dtype=np.uint64
    )
    image = random_resized_crop(image, size, AUGMENT.area, bits)
    if torch.rand(()) < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (IMAGENET.mean, IMAGENET.std))
    return values.sub_(mean).div_(std)


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """A list of paths and classes, like torchvision's."""

    def __init__(self, folder: Path, size: int) -> None:
        self.samples: list[tuple[str, int]] = []
        self.size = size
        for label, name in enumerate(sorted(os.listdir(folder))):
            for file in sorted(os.listdir(folder / name)):
                self.samples.append((f"{folder}/{name}/{file}", label))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[i]
        with open(path, "rb") as file:
            return crop_and_normalize(Image.open(file).convert("RGB"), self.size), label


def open_datasets(place: Path, name: str) -> Any:
    """Open with the datasets library alone."""
    import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    library: Any = datasets
    found = library.load_dataset(str(place / name), cache_dir=str(place / "cache" / "datasets"))
    size = SIZES[name]

    def transform(rows: dict[str, Any]) -> dict[str, Any]:
        images = [crop_and_normalize(image.convert("RGB"), size) for image in rows["image"]]
        return {"image": images, "label": rows["label"]}

    return found["train"].with_transform(transform)


def torch_batches(dataset: Any, rank: int) -> Iterator[Any]:
    """Shuffle with DataLoader, as examples/imagenet of PyTorch does."""
    sampler: Any = DistributedSampler(dataset, RANKS, rank)
    return iter(DataLoader(dataset, BATCH, sampler=sampler, num_workers=WORKERS))


def open_loader(loader: str, place: Path, name: str) -> Callable[[int], Iterator[Any]]:
    """Open a set; return a function from the rank to its batches."""
    if loader == "lbq":
        opened = open_lbq(place, name)
        return lambda rank: lbq_batches(opened, rank)
    if loader == "ImageFolder":
        dataset = ImageFolder(place / name / "train", SIZES[name])
    else:
        dataset = open_datasets(place, name)
    return lambda rank: torch_batches(dataset, rank)


def anonymous_mib(pid: int) -> int:
    """Private memory of a process and of its children, without files that are mapped."""
    total, pids = 0, [pid]
    while pids:
        each = pids.pop()
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
            children = Path(f"/proc/{each}/task/{each}/children").read_text()
        except OSError:  # ended meanwhile
            continue
        pss = next(line for line in rollup.splitlines() if line.startswith("Pss_Anon"))
        total += int(pss.split()[1])
        pids += [int(child) for child in children.split()]
    return total // 1024


def measure_open(place: Path, name: str, loader: str) -> dict[str, float]:
    """Open in this fresh process: seconds, memory, time per random access."""
    start = time.perf_counter()
    batches = open_loader(loader, place, name)
    opened = time.perf_counter()
    next(batches(0))
    first = time.perf_counter()
    found = {"open_s": opened - start, "first_batch_s": first - opened}
    found["memory_mib"] = anonymous_mib(os.getpid())
    if loader == "lbq":
        split: Any = open_lbq(place, name).splits.train
        index = np.random.default_rng(0).integers(0, 1_300_000, 5000).tolist()
        start = time.perf_counter()
        for i in index:
            split.rows.encoded.fetch(i)
        found["random_access_us"] = 1e6 * (time.perf_counter() - start) / len(index)
    return {key: round(value, 2) for key, value in found.items()}


def decode_from_memory(encoded: list[bytes], size: int, count: int, ready: Any) -> float:
    """Decode, crop, flip and normalise images from memory, in one process."""
    key = {"seed": 0, "epoch": 0, "start": 0}
    images = np.empty((BATCH, 3, size, size), np.uint8)
    ready.wait()
    start = time.perf_counter()
    for step in range(count // BATCH):
        bits = random_bits(RandomStream.RESIZED_CROP, **key, count=BATCH, width=CROP_DRAWS)
        for i in range(BATCH):
            image = decode(encoded[(step * BATCH + i) % len(encoded)], "an image")
            images[i] = to_bytes(random_resized_crop(image, size, AUGMENT.area, bits[i]))
        normalize(augment_images(images, AUGMENT, **key), IMAGENET)
    return time.perf_counter() - start


def answer(results: Any, barrier: Any, run: Callable[[Any], float]) -> None:
    results.put(run(barrier))


def together(runs: list[Callable[[Any], float]]) -> list[float]:
    """Run functions of a barrier in separate processes; return their answers."""
    barrier, results = fork.Barrier(len(runs)), fork.SimpleQueue()
    processes = [fork.Process(target=answer, args=(results, barrier, run)) for run in runs]
    for process in processes:
        process.start()
    answers = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return answers


def rate(loader: str, opened: Any, name: str, steps: int) -> float:
    """Measure the images per second of all ranks together."""
    if loader == "decode":
        count = RANKS * steps * BATCH // (RANKS * WORKERS)

        def run(barrier: Any) -> float:
            return count / decode_from_memory(opened, SIZES[name], count, barrier)

        return sum(together([run] * (RANKS * WORKERS)))

    def rank(number: int) -> Callable[[Any], float]:
        def run(barrier: Any) -> float:
            batches = opened(number)
            for _ in range(2 * WORKERS + 2):  # more than the workers have prepared
                next(batches)
            barrier.wait()
            start = time.perf_counter()
            for _ in range(steps):
                next(batches)
            return steps * BATCH / (time.perf_counter() - start)

        return run

    return sum(together([rank(number) for number in range(RANKS)]))


def encoded_images(place: Path, name: str) -> list[bytes]:
    split: Any = open_lbq(place, name).splits.train
    return [split.rows.encoded.fetch(i)[1] for i in range(0, 1_300_000, 997)]


def measure_rates(
    place: Path, name: str, loaders: list[str], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Interleave the loaders; return the rates of every round."""
    opened = {
        loader: encoded_images(place, name)
        if loader == "decode"
        else open_loader(loader, place, name)
        for loader in loaders
    }
    found: dict[str, list[float]] = {loader: [] for loader in loaders}
    for _ in range(rounds):
        for loader in loaders:
            found[loader].append(round(rate(loader, opened[loader], name, steps), 1))
            sys.stderr.write(f"{name} {loader} {found[loader][-1]}\n")
    return found


def check_sums(place: Path, size: int, rank: int, first: int, last: int, log: Path) -> None:
    """Write a line with a check sum for every batch of some steps."""
    opened = open_lbq(place, "parquet", size)
    with open(log, "a", buffering=1) as file:
        for step, batch in enumerate(lbq_batches(opened, rank, first), first):
            if step >= last:
                break
            sums = zlib.crc32(batch.sample_ids.numpy()), zlib.crc32(batch.x.numpy())
            file.write(f"{step} {sums[0]} {sums[1]}\n")


def start_ranks(
    place: Path, size: int, first: int, last: int, name: str
) -> tuple[list[Any], list[Path]]:
    logs = [place / f"{name}-{rank}.txt" for rank in range(RANKS)]
    ranks: list[Any] = []
    for rank, log in enumerate(logs):
        log.unlink(missing_ok=True)
        arguments = place, size, rank, first, last, log
        ranks.append(fork.Process(target=check_sums, args=arguments))
        ranks[-1].start()
    return ranks, logs


def read_sums(log: Path) -> dict[str, str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return dict(line.split(" ", 1) for line in lines)


def kill_tree(pid: int) -> None:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, signal.SIGKILL)


def measure_epoch(place: Path, size: int, share: float, seconds: float) -> dict[str, Any]:
    """Load an epoch and watch the memory; then kill a second one at 60 % and resume it.

    Images are cropped to few pixels, so that an epoch takes minutes.
    """
    steps = 1_300_000 // (RANKS * BATCH)
    kill_at = int(0.6 * steps)
    last = int(share * steps)
    start, memory = time.perf_counter(), list[tuple[float, int]]()
    ranks, logs = start_ranks(place, size, 0, last, "whole")
    while any(rank.is_alive() for rank in ranks) and time.perf_counter() - start < seconds:
        time.sleep(5)
        done = min(len(read_sums(log)) for log in logs)
        memory.append((round(done / steps, 3), sum(anonymous_mib(rank.pid) for rank in ranks)))
        sys.stderr.write(f"{memory[-1]}\n")
    for rank in ranks:
        rank.join()
    whole_s = time.perf_counter() - start
    whole = [read_sums(log) for log in logs]
    ranks, logs = start_ranks(place, size, int(0.58 * steps), last, "killed")
    while str(kill_at) not in read_sums(logs[0]):
        time.sleep(0.01)
    for rank in ranks:
        kill_tree(rank.pid)
        rank.join()
    start = time.perf_counter()
    ranks, logs = start_ranks(place, size, kill_at, min(last, kill_at + 200), "resumed")
    while not all(read_sums(log) for log in logs):
        time.sleep(0.01)
    first_s = time.perf_counter() - start
    for rank in ranks:
        rank.join()
    resumed = [read_sums(log) for log in logs]
    same = all(
        whole[rank][step] == sums for rank in range(RANKS) for step, sums in resumed[rank].items()
    )
    return {
        "pixels": size,
        "seconds": round(whole_s, 1),
        "images": len(whole[0]) * BATCH * RANKS,
        "memory_mib_at_share_of_epoch": memory,
        "resumed_at_step": kill_at,
        "steps_compared": sum(len(each) for each in resumed),
        "resume_is_exact": same,
        "resume_first_batch_s": round(first_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("make", "open", "rate", "epoch"))
    parser.add_argument("place", type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--loaders", nargs="+", default=list(LOADERS), choices=LOADERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="batches per rank and round")
    parser.add_argument("--pixels", type=int, default=16, help="of the images of `epoch`")
    parser.add_argument("--share", type=float, default=1.0, help="of the epoch")
    parser.add_argument("--seconds", type=float, default=1e9, help="most for watching the epoch")
    parser.add_argument("--fresh", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="add to the record there, JSON")
    arguments = parser.parse_args()
    place = arguments.place.absolute()
    torch.set_num_threads(1)
    if arguments.what == "make":
        make(place)
        return
    if arguments.fresh:
        (name,), (loader,) = arguments.sets, arguments.loaders
        print(json.dumps(measure_open(place, name, loader)))
        return
    found: dict[str, Any] = {}
    for name in arguments.sets if arguments.what != "epoch" else []:
        loaders = [each for each in arguments.loaders if (each, name) != ("ImageFolder", "parquet")]
        if arguments.what == "rate":
            rates = measure_rates(place, name, loaders, arguments.rounds, arguments.steps)
            found[name] = {"images_per_s": rates}
            if "decode" in rates:
                found[name]["share_of_decoding"] = {
                    loader: round(statistics.median(np.divide(each, rates["decode"]).tolist()), 3)
                    for loader, each in rates.items()
                }
            continue
        found[name] = {}
        for loader in loaders:
            if loader != "decode":
                words = [sys.executable, __file__, "open", place, "--fresh"]
                words += ["--sets", name, "--loaders", loader]
                done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
                found[name][loader] = json.loads(done.stdout.splitlines()[-1])
                sys.stderr.write(f"{name} {loader} {found[name][loader]}\n")
    if arguments.what == "epoch":
        found = measure_epoch(place, arguments.pixels, arguments.share, arguments.seconds)
    print(json.dumps(found, indent=1))
    if arguments.out:
        record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        record |= {"ranks": RANKS, "workers": WORKERS, "batch": BATCH, "torch": torch.__version__}
        record["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        record.setdefault(arguments.what, {}).update(found)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
