"""A plain ANN: a perceptron with ReLUs on CIFAR-10, without any neuron of ours."""

import sys

import torch
from cifar10 import Cifar10
from torch import nn

import lbq
from lbq.train import OptimConfig


def recipe():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
    )
    return {
        "model": model,
        "train_data": Cifar10("train"),
        "eval_data": Cifar10("test"),
        "config": lbq.TrainConfig(epochs=2, batch=50, optim=OptimConfig(lr=0.01)),
    }


if __name__ == "__main__":
    lbq.fit(**recipe(), out=sys.argv[1])
