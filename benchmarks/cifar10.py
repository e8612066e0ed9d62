"""CIFAR-10 for the benchmarks, from ``$LBQ_DATA/cifar10``.

The folder holds the Hugging Face parquet files of uoft-cs/cifar10; reading them needs pyarrow and
pillow.
"""

import io
import os
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def read_cifar10_bytes(split: Literal["train", "test"], count: int) -> tuple[Tensor, Tensor]:
    """Decode the first images as uint8 ``[B, 3, 32, 32]``, and their labels."""
    from PIL import Image  # noqa: PLC0415 -- only these benchmarks read images
    from pyarrow import parquet  # noqa: PLC0415

    if "LBQ_DATA" not in os.environ:
        sys.exit(
            "set LBQ_DATA to the folder that holds cifar10/ (parquet files of uoft-cs/cifar10)"
        )
    file, *_ = sorted((Path(os.environ["LBQ_DATA"]) / "cifar10").rglob(f"{split}*.parquet"))
    table = parquet.read_table(file, columns=["img", "label"]).slice(0, count)
    pixels = np.stack(
        [
            np.asarray(Image.open(io.BytesIO(row["bytes"])))
            for row in table.column("img").to_pylist()
        ]
    )
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor(table.column("label").to_pylist())


def read_cifar10(split: Literal["train", "test"], count: int) -> tuple[Tensor, Tensor]:
    """Decode the first images, normalised as the paper's recipe does, and their labels."""
    pixels, labels = read_cifar10_bytes(split, count)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels / 255 - mean) / std, labels
