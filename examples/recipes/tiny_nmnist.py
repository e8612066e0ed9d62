"""A perceptron for a microcontroller or a small FPGA: event recordings of digits (N-MNIST).

lbq train ./examples/recipes/tiny_nmnist.py --out runs/tiny-nmnist
lbq lower runs/tiny-nmnist --model examples/recipes/tiny_nmnist.py --out tiny_nmnist.lbq
lbq export tiny_nmnist.lbq --to verilog --out tiny_nmnist.v

The environment variable NMNIST names a zip file with the folders Train/<digit> and Test/<digit>;
with LEVELS=powers the levels are 0, 1, 2 and 4.
"""

import os
import zipfile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import lbq
from lbq.data.events import read_nmnist
from lbq.train import OptimConfig

TIMESTEPS = 2


class Recordings(Dataset[tuple[Tensor, int]]):
    """Event counts ``[T, 2, 17, 17]`` of the halves of a recording, over 2x2 pixels."""

    def __init__(self, split: str) -> None:
        with zipfile.ZipFile(os.environ["NMNIST"]) as archive:
            names = sorted(n for n in archive.namelist() if n.endswith(".bin"))
            names = [name for name in names if f"{split}/" in name]
            self.frames = torch.stack([_frames(archive.read(name)) for name in names])
        self.classes = [int(name.split("/")[-2]) for name in names]
        self.is_train = split == "Train"

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        frames = self.frames[index].float()
        if self.is_train:
            frames = frames.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), (2, 3))
        return frames, self.classes[index]


def _frames(recording: bytes) -> Tensor:
    events = read_nmnist(recording)
    half = np.arange(len(events)) * TIMESTEPS // len(events)
    frames = np.zeros((TIMESTEPS, 2, 17, 17), np.int64)
    np.add.at(frames, (half, events.p, events.y // 2, events.x // 2), 1)
    return torch.from_numpy(frames.clip(max=255).astype(np.uint8))


def neuron() -> lbq.BurstLIF:
    """Return a neuron with levels 0..5, or 0, 1, 2, 4."""
    if os.environ.get("LEVELS") == "powers":
        return lbq.BurstLIF(4, level_set="powers")
    return lbq.BurstLIF()


def network() -> nn.Sequential:
    """Return three linear layers: 40 thousand weights."""
    return nn.Sequential(
        lbq.OverTime(nn.Flatten(), nn.Linear(578, 64, bias=False), nn.BatchNorm1d(64)),
        neuron(),
        lbq.OverTime(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32)),
        neuron(),
        nn.Linear(32, 10),
        lbq.MeanOverTime(),
    )


def recipe() -> dict[str, Any]:
    """Return what ``lbq train`` needs."""
    torch.manual_seed(0)
    model = network()
    model.preprocessing = None  # counts, not pixels
    return {
        "model": model,
        "train_data": Recordings("Train"),
        "eval_data": Recordings("Test"),
        "time_first": True,
        "config": lbq.TrainConfig(epochs=30, batch=50, optim=OptimConfig(lr=0.05)),
    }
