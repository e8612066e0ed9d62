"""E-SpikeFormer written a second time, from its equations, for T = 1, in plain functions.

It reads the tensors of a network by name and shares no code with it. The levels of every neuron
are collected by the neuron's name.
"""

import torch
from torch.nn import functional as F


class Reference:
    def __init__(self, state, *, strides, blocks, heads):
        self.state = {name: tensor.double() for name, tensor in state.items()}
        self.strides, self.blocks, self.heads = strides, blocks, heads
        self.levels = {}

    def spike(self, name, x):
        """s(x) = round(clamp(x, 0, 4)) / 4, half to even."""
        level = x.clamp(0, 4).round()
        self.levels[name] = level
        return level / 4

    def conv_norm(self, name, x, **options):
        """A convolution and its batch norm, which are called name.0 and name.1."""
        weight, bias = self.state[f"{name}.0.weight"], self.state.get(f"{name}.0.bias")
        x = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2, **options)
        mean, var = (self.state[f"{name}.1.running_{kind}"] for kind in ("mean", "var"))
        gain, offset = self.state[f"{name}.1.weight"], self.state[f"{name}.1.bias"]
        return F.batch_norm(x, mean, var, gain, offset, training=False, eps=1e-5)

    def separable(self, name, x):
        y = self.conv_norm(f"{name}.layers.1", self.spike(f"{name}.layers.0", x))
        y = self.spike(f"{name}.layers.2", y)
        y = self.conv_norm(f"{name}.layers.3", y, groups=y.shape[1])
        return x + self.conv_norm(f"{name}.layers.5", self.spike(f"{name}.layers.4", y))

    def mixer(self, name, x):
        y = self.conv_norm(f"{name}.layers.1", self.spike(f"{name}.layers.0", x))
        return x + self.conv_norm(f"{name}.layers.3", self.spike(f"{name}.layers.2", y))

    def attention(self, name, x):
        y = self.spike(f"{name}.neuron", x)
        q, k, v = (
            self.spike(f"{name}.{part}.1", self.conv_norm(f"{name}.{part}.0", y))
            for part in ("query", "key", "value")
        )
        batch, channels, height, width = x.shape
        z = torch.zeros_like(v)
        size, wide = channels // self.heads, v.shape[1] // self.heads
        for b in range(batch):
            for head in range(self.heads):
                mine = slice(head * size, (head + 1) * size)
                values = slice(head * wide, (head + 1) * wide)
                one, two = (each[b, mine].reshape(size, -1).T for each in (q, k))  # [tokens, size]
                three = v[b, values].reshape(wide, -1).T
                product = (one @ two.T) @ three * 2 * size**-0.5
                z[b, values] = product.T.reshape(wide, height, width)
        return x + self.conv_norm(f"{name}.output", self.spike(f"{name}.output_neuron", z))

    def __call__(self, images):
        x = F.conv2d(
            images.double(),
            self.state["stem.1.weight"],
            self.state["stem.1.bias"],
            stride=self.strides[0],
            padding=self.state["stem.1.weight"].shape[-1] // 2,
        )
        mean, var = self.state["stem.2.running_mean"], self.state["stem.2.running_var"]
        gain, offset = self.state["stem.2.weight"], self.state["stem.2.bias"]
        x = F.batch_norm(x, mean, var, gain, offset, training=False, eps=1e-5)
        for stage, count in enumerate(self.blocks):
            if stage:
                x = self.spike(f"between.{stage - 1}.0", x)
                x = self.conv_norm(f"between.{stage - 1}.1", x, stride=self.strides[stage])
            for index in range(count):
                name = f"stages.{stage}.{index}"
                x = self.separable(f"{name}.0", x)
                if stage < 3:
                    x = self.mixer(f"{name}.1", x)
                else:
                    x = self.mixer(f"{name}.2", self.attention(f"{name}.1", x))
        features = self.spike("neuron", x.mean((2, 3)))
        return features @ self.state["classifier.weight"].T + self.state["classifier.bias"]
