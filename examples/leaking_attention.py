"""A spiking transformer with a fault that a published one had: ``lbq audit`` finds it.

    lbq audit examples/leaking_attention.py --out audit.html

The last neuron receives batch and time as one axis, so membranes of one image leak into the next.
``LEAKS = False`` repairs it.
"""

import torch
from torch import Tensor, nn

import lbq

LEAKS = True
TIMESTEPS, CHANNELS, CLASSES = 4, 32, 10


def synapse() -> lbq.OverTime:
    """Mix the channels of tokens."""
    return lbq.OverTime(nn.Conv1d(CHANNELS, CHANNELS, 1, bias=False), nn.BatchNorm1d(CHANNELS))


class Network(nn.Module):
    """Queries and keys are levels; the sum of each query gates the keys (as in QKFormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, CHANNELS, 4, stride=4)
        self.repeat, self.first = lbq.RepeatOverTime(TIMESTEPS), lbq.BurstLIF(1, step=0.4)
        branches = (nn.Sequential(synapse(), lbq.BurstLIF(1, step=0.15)) for _ in range(2))
        self.query, self.key = branches
        self.gate, self.projection = lbq.BurstLIF(1, step=0.5), synapse()
        self.neuron = lbq.BurstLIF(1, step=0.15)
        self.classifier, self.mean = nn.Linear(CHANNELS, CLASSES), lbq.MeanOverTime()

    def forward(self, images: Tensor) -> Tensor:
        """Classify images ``[B, 3, 32, 32]``; their patches are tokens, ``[T, B, C, N]``."""
        tokens = self.first(self.repeat(self.patches(images).flatten(2)))
        gate = self.gate(self.query(tokens).sum(2, keepdim=True))
        currents = self.projection(gate * self.key(tokens))
        merged = currents.flatten(0, 1).unsqueeze(1) if LEAKS else currents
        levels = self.neuron(merged).view_as(currents)
        return self.mean(self.classifier(levels.mean(3)))


def model() -> nn.Module:
    """Build the network, with random weights."""
    torch.manual_seed(0)
    return Network()


def samples() -> Tensor:
    """Return images to audit it with."""
    torch.manual_seed(1)
    return 2 * torch.randn(32, 3, 32, 32)


if __name__ == "__main__":
    print(lbq.audit(model(), samples(), name="leaking_attention"))
