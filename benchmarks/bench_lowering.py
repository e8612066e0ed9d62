"""Time and memory of ``lower`` and ``to_fixed_point`` for two networks of ImageNet size.

    python benchmarks/bench_lowering.py --out benchmarks/results/lowering.json

Each network runs in a process of its own, on one thread: the ResNet-34 of the paper, and a
transformer of 19 million parameters with the layout of E-SpikeFormer (Spike-driven Transformer V3):
convolution blocks, then attention of levels without a softmax. Memory is the largest resident size
of the process, torch included.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from measure import write_record
from torch import nn

import lbq
from lbq.neurons import IntegerLIF

IMAGE = (1, 3, 224, 224)


def conv(inputs: int, outputs: int, kernel: int, **options: int) -> lbq.OverTime:
    """Return a convolution with its batch norm, at every timestep."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **options)
    return lbq.OverTime(layer, nn.BatchNorm2d(outputs))


class SepConv(nn.Module):
    """Pointwise, depthwise and pointwise convolution, a neuron before each."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        parts = (
            conv(width, 2 * width, 1),
            conv(2 * width, 2 * width, kernel, groups=2 * width),
            conv(2 * width, width, 1),
        )
        self.layers = nn.Sequential(*(m for part in parts for m in (IntegerLIF(4), part)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the branch to the currents."""
        return x + self.layers(x)


class ConvBlock(nn.Module):
    """A separable convolution, then two full ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.separable = SepConv(width, 7)
        self.wide = nn.Sequential(
            *(IntegerLIF(4), conv(width, 4 * width, 3)), *(IntegerLIF(4), conv(4 * width, width, 3))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both branches to the currents."""
        x = self.separable(x)
        return x + self.wide(x)


class Attention(nn.Module):
    """Attention of levels, values four times as wide as queries and keys."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.scale = heads, 2 * (width // heads) ** -0.5
        self.enter = IntegerLIF(4)
        self.q = nn.Sequential(conv(width, width, 1), IntegerLIF(4))
        self.k = nn.Sequential(conv(width, width, 1), IntegerLIF(4))
        self.v = nn.Sequential(conv(width, 4 * width, 1), IntegerLIF(4))
        self.leave, self.out = IntegerLIF(4), conv(4 * width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply levels with levels; a neuron follows."""
        t, b, _, h, w = x.shape
        y = self.enter(x)
        q, k, v = (
            part(y).flatten(3).reshape(t, b, self.heads, -1, h * w).transpose(-1, -2)
            for part in (self.q, self.k, self.v)
        )
        y = ((q @ k.transpose(-1, -2)) @ v) * self.scale
        y = self.leave(y.transpose(-1, -2).reshape(t, b, -1, h, w))
        return x + self.out(y)


class Block(nn.Module):
    """A separable convolution, attention and an MLP of 1x1 convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.separable, self.attention = SepConv(width, 3), Attention(width)
        self.mlp = nn.Sequential(
            *(IntegerLIF(4), conv(width, 4 * width, 1)), *(IntegerLIF(4), conv(4 * width, width, 1))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add all branches to the currents."""
        x = self.attention(self.separable(x))
        return x + self.mlp(x)


def transformer(widths: tuple[int, ...] = (64, 128, 256, 360)) -> nn.Module:
    """Build the transformer; about 19 million parameters."""
    first, second, third, last = widths
    return nn.Sequential(
        *(lbq.RepeatOverTime(1), conv(3, first // 2, 7, stride=2), ConvBlock(first // 2)),
        *(IntegerLIF(4), conv(first // 2, first, 3, stride=2), ConvBlock(first)),
        *(IntegerLIF(4), conv(first, second, 3, stride=2), ConvBlock(second), ConvBlock(second)),
        *(IntegerLIF(4), conv(second, third, 3, stride=2), *(Block(third) for _ in range(6))),
        *(IntegerLIF(4), conv(third, last, 3), *(Block(last) for _ in range(2))),
        *(lbq.OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten()), IntegerLIF(4)),
        *(nn.Linear(last, 1000), lbq.MeanOverTime()),
    )


NETWORKS = {"resnet34": lambda: lbq.resnet34(1000), "transformer": transformer}


def measure(name: str) -> dict[str, float]:
    """Lower one network and convert it to integers of 8 bits."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    image = torch.randn(IMAGE)
    start = time.perf_counter()
    network = lbq.lower(model, image)
    lowered = time.perf_counter()
    pixels = lbq.Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    integers = lbq.to_fixed_point(network, pixels=pixels)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "nodes": len(integers.nodes),
        "lower_s": round(lowered - start, 2),
        "to_fixed_point_s": round(time.perf_counter() - lowered, 2),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def main() -> None:
    """Measure each network in a process; print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=NETWORKS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only)))
        return
    record: dict[str, object] = {"torch": torch.__version__}
    for name in NETWORKS:
        line = [sys.executable, __file__, "--only", name]
        done = subprocess.run(line, check=True, capture_output=True, text=True)  # noqa: S603
        record[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, record[name])
    write_record(arguments.out, record)


if __name__ == "__main__":
    main()
