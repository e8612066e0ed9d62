"""A transformer over patches of CIFAR-10 whose queries, keys, values and features are bursts."""

import sys

import torch
from cifar10 import Cifar10
from torch import nn

import lbq
from lbq.train import OptimConfig, ScheduleConfig


def linear_norm(features_in, features_out):
    """Linear layer and batch norm over the features of ``[T, B, tokens, features]``."""
    return nn.Sequential(nn.Linear(features_in, features_out, bias=False), TokenNorm(features_out))


class TokenNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x.flatten(0, -2)).view_as(x)


class Attention(nn.Module):
    """Attention without softmax: levels times levels, as spiking transformers have it."""

    def __init__(self, features):
        super().__init__()
        self.queries, self.keys, self.values = (
            nn.Sequential(linear_norm(features, features), lbq.BurstLIF(max_level=3))
            for _ in range(3)
        )
        self.out = linear_norm(features, features)
        self.scale = 1 / features

    def forward(self, x):
        context = self.keys(x).transpose(-2, -1) @ self.values(x)
        return self.out(self.queries(x) @ context * self.scale)


class Block(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.neuron, self.attention = lbq.BurstLIF(max_level=3), Attention(features)
        self.mlp = nn.Sequential(
            lbq.BurstLIF(max_level=3),
            linear_norm(features, 2 * features),
            lbq.BurstLIF(max_level=3),
            linear_norm(2 * features, features),
            nn.Dropout(0.1),
        )

    def forward(self, x):
        x = x + self.attention(self.neuron(x))
        return x + self.mlp(x)


class TokenTransformer(nn.Module):
    """Returns logits at every timestep, ``[T, B, classes]``."""

    def __init__(self, features=32, depth=1, timesteps=2):
        super().__init__()
        self.patches = nn.Conv2d(3, features, 4, stride=4)
        self.places = nn.Parameter(torch.zeros(64, features))
        self.blocks = nn.Sequential(*(Block(features) for _ in range(depth)))
        self.neuron, self.head = lbq.BurstLIF(max_level=3), nn.Linear(features, 10)
        self.timesteps = timesteps

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        x = self.blocks(tokens.expand(self.timesteps, *tokens.shape))
        return self.head(self.neuron(x).mean(2))


def recipe():
    torch.manual_seed(0)
    return {
        "model": TokenTransformer(),
        "train_data": Cifar10("train"),
        "eval_data": Cifar10("test"),
        "config": lbq.TrainConfig(
            epochs=2,
            batch=50,
            optim=OptimConfig(kind="adamw", lr=2e-3, weight_decay=0.05, decay_norms=False),
            schedule=ScheduleConfig(warmup_epochs=0.2),
        ),
    }


if __name__ == "__main__":
    lbq.fit(**recipe(), out=sys.argv[1])
