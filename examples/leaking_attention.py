"""A spiking transformer with a fault that a published one had: ``lbq audit`` finds it.

    lbq audit examples/leaking_attention.py --out audit.html

The neuron behind the projection receives batch and time as one axis, so membranes of one image
leak into the next. ``LEAKS = False`` mends it.
"""

import torch
from torch import Tensor, nn

import lbq

LEAKS = True
TIMESTEPS, CHANNELS, CLASSES = 4, 32, 10


class Attention(nn.Module):
    """Queries and keys are levels; the sum of each query gates the keys (as in QKFormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = (self._branch() for _ in range(2))
        self.gate = lbq.BurstLIF(1, step=0.5)
        self.projection = lbq.OverTime(
            nn.Conv1d(CHANNELS, CHANNELS, 1, bias=False), nn.BatchNorm1d(CHANNELS)
        )
        self.neuron = lbq.BurstLIF(1, step=0.15)

    @staticmethod
    def _branch() -> nn.Sequential:
        layers = nn.Conv1d(CHANNELS, CHANNELS, 1, bias=False), nn.BatchNorm1d(CHANNELS)
        return nn.Sequential(lbq.OverTime(*layers), lbq.BurstLIF(1, step=0.15))

    def forward(self, x: Tensor) -> Tensor:
        """Take and return levels of tokens, ``[T, B, C, N]``."""
        gate = self.gate(self.query(x).sum(2, keepdim=True))
        currents = self.projection(gate * self.key(x))
        if not LEAKS:
            return self.neuron(currents)
        return self.neuron(currents.flatten(0, 1).unsqueeze(1)).view_as(currents)


class Network(nn.Module):
    """Patches of images as tokens, attention, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, CHANNELS, 4, stride=4)
        self.repeat, self.neuron = lbq.RepeatOverTime(TIMESTEPS), lbq.BurstLIF(1, step=0.4)
        self.attention = Attention()
        self.classifier, self.mean = nn.Linear(CHANNELS, CLASSES), lbq.MeanOverTime()

    def forward(self, images: Tensor) -> Tensor:
        """Classify images ``[B, 3, 32, 32]``."""
        tokens = self.neuron(self.repeat(self.patches(images).flatten(2)))
        return self.mean(self.classifier(self.attention(tokens).mean(3)))


def model() -> nn.Module:
    """Build the network, with random weights."""
    torch.manual_seed(0)
    return Network()


def samples() -> Tensor:
    """Return images to audit it with."""
    torch.manual_seed(1)
    return 2 * torch.randn(32, 3, 32, 32)
