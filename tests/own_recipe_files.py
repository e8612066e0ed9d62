"""A network, data and recipe file of a user's own, for the tests of commands and adapters."""

IMAGES = """\
import torch
from torch import nn

import lbq


def recipe():
    y = torch.arange(96) % 3
    raw = (torch.randint(0, 120, (96, 3, 8, 8)) + 60 * y[:, None, None, None]).clamp(max=255)
    x = (raw / 255 - 0.5) / 0.25
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        lbq.RepeatOverTime(2),
        lbq.BurstLIF(),
        lbq.OverTime(nn.AvgPool2d(8)),
        nn.Flatten(2),
        nn.Linear(8, 3),
    )
    model.preprocessing = lbq.Pixels(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return {
        "model": model,
        "train_data": (x, y),
        "eval_data": (x[:60], y[:60]),
        "config": lbq.TrainConfig(epochs=2, batch=16, test_batch=16),
    }
"""

REGRESSION = """\
import torch
from torch import nn

import lbq


def error(output, target):
    return (output - target).abs().squeeze(1)


def recipe():
    counts = torch.randint(0, 20, (64, 3, 6)).float()
    data = counts, counts.mean((1, 2))[:, None] / 20
    model = nn.Sequential(
        nn.Linear(6, 8), lbq.BurstLIF(), nn.Linear(8, 1), lbq.MeanOverTime()
    )
    model.preprocessing = None
    return {
        "model": model,
        "train_data": data,
        "eval_data": data,
        "config": lbq.TrainConfig(epochs=2, batch=16),
        "loss": nn.functional.mse_loss,
        "metrics": {"error": error},
        "time_first": True,
    }
"""
