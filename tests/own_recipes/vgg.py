"""A small VGG with burst neurons on CIFAR-10."""

import sys

import torch
from cifar10 import Cifar10
from torch import nn

import lbq
from lbq.time import MeanOverTime, OverTime, RepeatOverTime


def stage(channels_in, channels_out):
    return [
        OverTime(nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out)),
        lbq.BurstLIF(max_level=3),
        OverTime(nn.AvgPool2d(2)),
    ]


def recipe():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        RepeatOverTime(2),
        lbq.BurstLIF(max_level=3),
        *stage(8, 16),
        *stage(16, 32),
        *stage(32, 32),
        OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 10)),
        MeanOverTime(),
    )
    return {
        "model": model,
        "train_data": Cifar10("train"),
        "eval_data": Cifar10("test"),
        "config": lbq.TrainConfig(epochs=2, batch=50),
    }


if __name__ == "__main__":
    lbq.fit(**recipe(), out=sys.argv[1])
