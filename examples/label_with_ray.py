"""Label images with Ray Data: Parquet in, Parquet out, one worker per core.

    python examples/label_with_ray.py net.lbq images/ labels/ --workers 2

The Parquet files of images/ have the columns id and image, the raw bytes of every image in the
network's order, [C, H, W]. Those of labels/ have id, class and logits.
"""

import argparse
import math
import os
from functools import partial
from pathlib import Path

import numpy as np

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
import ray
from ray.data import ActorPoolStrategy, SaveMode

import lbq

Batch = dict[str, np.ndarray]


def unpack(batch: Batch, shape: tuple[int, ...]) -> Batch:
    """Turn raw bytes into arrays; encoded images would be decoded here."""
    if "image" not in batch:
        raise ValueError(f"the files have no column 'image', only {', '.join(batch)}")
    size = math.prod(shape)
    for row, image in enumerate(batch["image"]):
        if not isinstance(image, bytes) or len(image) != size:
            got = f"{len(image)} bytes" if isinstance(image, bytes) else type(image).__name__
            raise ValueError(f"row {row} of 'image' must be {size} bytes, uint8 {shape}, got {got}")
    pixels = np.frombuffer(b"".join(batch["image"]), dtype=np.uint8)
    return {**batch, "image": pixels.reshape(-1, *shape)}


def label(
    bundle: Path,
    images: Path,
    labels: Path,
    *,
    workers: int,
    block_mb: float = 8,
    predictor: type = lbq.Predictor,
) -> None:
    """Label all images; a block whose worker dies is computed again by another one."""
    sha256 = lbq.formats.digest(bundle)
    network = lbq.load_network(bundle, sha256=sha256)
    shape = ((network.timesteps,) if network.takes_frames else ()) + tuple(network.input_shape)
    sizes = ray.data.DataContext.get_current()
    sizes.target_min_block_size = sizes.target_max_block_size = int(block_mb * 2**20)
    rows = ray.data.read_parquet(str(images)).map_batches(partial(unpack, shape=shape))
    rows = rows.map_batches(
        predictor,
        fn_constructor_args=[str(bundle.resolve())],
        fn_constructor_kwargs={"sha256": sha256},  # every worker reads the same file
        compute=ActorPoolStrategy(size=workers),
        num_cpus=1,
        batch_size=256,
    )
    rows.write_parquet(str(labels), mode=SaveMode.ERROR)  # the folder must be new


def main() -> None:
    """Label the images of a folder on this machine, or on the cluster of RAY_ADDRESS."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--block-mb", type=float, default=8, help="size of a block")
    options = parser.parse_args()
    slots = None if "RAY_ADDRESS" in os.environ else options.workers + 1  # one reads and writes
    ray.init(num_cpus=slots, include_dashboard=False)
    label(
        options.bundle,
        options.images,
        options.labels,
        workers=options.workers,
        block_mb=options.block_mb,
    )


if __name__ == "__main__":
    main()
