"""The overhead of counting: a pass over the CIFAR-10 test images with and without a counter.

    LBQ_DATA=<folder> python benchmarks/bench_op_counter.py            all 10,000 images
    LBQ_DATA=<folder> python benchmarks/bench_op_counter.py --images 200

Batches alternate between the two ways, so that both see the same conditions.
"""

import argparse
import platform
import time
from pathlib import Path

import torch
from cifar10 import read_cifar10
from measure import write_record

import lbq


@torch.no_grad()
def measure(images: torch.Tensor, width: float, batch_size: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=width)
    for batch in images[: 20 * batch_size].split(batch_size):
        model(batch)  # untrained, but batch norm knows the data, so that deep layers fire
    model.eval()
    counter = lbq.OpCounter(model, images[:1])
    without = counted = 0.0
    for index, batch in enumerate(images.split(batch_size)):
        for turn in (0, 1):
            start = time.perf_counter()
            if (index + turn) % 2:
                with lbq.watch_levels(model, counter):
                    model(batch)
                counted += time.perf_counter() - start
            else:
                model(batch)
                without += time.perf_counter() - start
    table = counter.table()
    print(table)
    return {
        "images": table.num_images,
        "seconds_without": without,
        "seconds_counted": counted,
        "ratio": counted / without,
        "bit_sparse_acs": table.total().bit_sparse_acs,
        "unary_acs": table.total().unary_acs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    images, _ = read_cifar10("test", arguments.images)
    found = measure(images, arguments.width, arguments.batch_size)
    print(
        f"{found['images']} images: {found['seconds_without']:.1f} s without, "
        f"{found['seconds_counted']:.1f} s with the counter, ratio {found['ratio']:.3f}"
    )
    versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    settings = {"command": "bench_op_counter", "width": arguments.width}
    write_record(arguments.out, {**settings, "machine": platform.machine(), **versions, **found})


if __name__ == "__main__":
    main()
