"""A SpikingJelly network with its own LIF neurons on N-MNIST; the adapter adds no state."""

import sys

import torch
from nmnist import Nmnist
from spikingjelly.activation_based import layer, neuron, surrogate
from torch import nn

import lbq
from lbq.adapters.spikingjelly import NodeNeuron


def lif():
    return NodeNeuron(neuron.LIFNode(surrogate_function=surrogate.ATan()))


def recipe():
    torch.manual_seed(0)
    model = nn.Sequential(
        layer.Conv2d(2, 16, 3, padding=1, bias=False, step_mode="m"),
        layer.BatchNorm2d(16, step_mode="m"),
        lif(),
        layer.MaxPool2d(2, step_mode="m"),
        layer.Conv2d(16, 32, 3, padding=1, bias=False, step_mode="m"),
        layer.BatchNorm2d(32, step_mode="m"),
        lif(),
        layer.AdaptiveAvgPool2d(4, step_mode="m"),
        layer.Flatten(step_mode="m"),
        layer.Linear(512, 10, step_mode="m"),
    )
    return {
        "model": model,
        "train_data": Nmnist("Train"),
        "eval_data": Nmnist("Test"),
        "config": lbq.TrainConfig(epochs=2, batch=20),
        "time_first": True,
    }


if __name__ == "__main__":
    lbq.fit(**recipe(), out=sys.argv[1])
