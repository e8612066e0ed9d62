"""A convolution net for a microcontroller or a small FPGA: CIFAR-10 at 16 pixels.

lbq train ./examples/recipes/tiny_cifar.py --out runs/tiny-cifar
lbq lower runs/tiny-cifar --model examples/recipes/tiny_cifar.py --out tiny_cifar.lbq
lbq export tiny_cifar.lbq --to c --out tiny_cifar.c

The environment variable CIFAR10 names a folder to read instead of the hub. With LEVELS=powers the
levels are 0, 1, 2 and 4.
"""

import os
from typing import Any

import numpy as np
import torch
from datasets import load_dataset
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import lbq
from lbq.train import OptimConfig

PIXELS = lbq.Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


class Images(Dataset[tuple[Tensor, int]]):
    """CIFAR-10 at half of its size, in bytes: the means of four pixels."""

    def __init__(self, split: str) -> None:
        rows = load_dataset(os.environ.get("CIFAR10", "uoft-cs/cifar10"), split=split)
        images = torch.from_numpy(np.stack([np.array(image) for image in rows["img"]]))
        self.images = F.avg_pool2d(images.movedim(3, 1).float(), 2).round().to(torch.uint8)
        self.classes, self.is_train = list(rows["label"]), split == "train"

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (PIXELS.mean, PIXELS.std))
        image = (self.images[index] / 255 - mean) / std
        if self.is_train:
            image = image.flip(2) if torch.rand(()) < 0.5 else image
            image = image.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), (1, 2))
        return image, self.classes[index]


def neuron() -> lbq.BurstLIF:
    """Return a neuron with levels 0..5, or 0, 1, 2, 4."""
    if os.environ.get("LEVELS") == "powers":
        return lbq.BurstLIF(4, level_set="powers")
    return lbq.BurstLIF()


def synapse(inputs: int, outputs: int, stride: int) -> lbq.OverTime:
    """Return a convolution with batch norm."""
    conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return lbq.OverTime(conv, nn.BatchNorm2d(outputs))


def network() -> nn.Sequential:
    """Return four convolutions and a linear layer, one timestep: 21 thousand weights."""
    return nn.Sequential(
        lbq.RepeatOverTime(1),
        synapse(3, 8, 2),
        neuron(),
        synapse(8, 16, 1),
        neuron(),
        synapse(16, 32, 2),
        neuron(),
        synapse(32, 48, 1),
        neuron(),
        lbq.OverTime(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 10)),
        lbq.MeanOverTime(),
    )


def recipe() -> dict[str, Any]:
    """Return what ``lbq train`` needs."""
    torch.manual_seed(0)
    model = network()
    model.preprocessing = PIXELS  # pyright: ignore[reportArgumentType] -- for `lbq lower`
    return {
        "model": model,
        "train_data": Images("train"),
        "eval_data": Images("test"),
        "config": lbq.TrainConfig(epochs=4, batch=128, optim=OptimConfig(lr=0.1)),
    }
