"""Compare "rate times FLOPs" with exact counts for well-known networks at full size.

    python benchmarks/audit_networks.py --data $LBQ_DATA/cifar10 --out benchmarks/results/audit.json
    python benchmarks/audit_networks.py --data $LBQ_DATA/cifar10 --time 1000   # of an audit

The pocket ResNet-20 is trained and reads CIFAR-10 test images. All others have random weights and
random statistics of batch norms, so their rates are not those of real networks. The comparison is
of two ways to count the same levels.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import write_record
from torch import Tensor, nn

import lbq
from lbq.auditing.audit import Audit
from lbq.cli.samples import open_samples, sample_batches
from lbq.models import ConvBlock, RepConv, SepConv, spikeformer_5m
from lbq.neurons import BinaryLIF, IntegerLIF
from lbq.pretrained import pretrained_recipe
from lbq.train.provenance import git_commit

POCKET = "pocket-cifar10"


class RepBlock(nn.Module):
    """A separable convolution, then two re-parametrised ones (SpikeYOLO's second block)."""

    def __init__(self, channels: int, neuron: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.separable = SepConv(channels, kernel=3, neuron=neuron)  # pyright: ignore[reportArgumentType]
        self.wide = nn.Sequential(
            *(neuron(channels), lbq.OverTime(RepConv(channels, 2 * channels))),
            *(neuron(2 * channels), lbq.OverTime(RepConv(2 * channels, channels))),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        x = self.separable(x)
        return x + self.wide(x)


class Pyramid(nn.Module):
    """Max pools of max pools, joined (SPPF), as the backbone's end."""

    def __init__(self, channels: int, neuron: Callable[[int], nn.Module]) -> None:
        super().__init__()
        half = channels // 2
        self.enter, self.neuron, self.inner = neuron(channels), neuron(half), _conv(channels, half)
        self.pool = lbq.OverTime(nn.MaxPool2d(5, 1, 2))
        self.last = _conv(4 * half, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Join four scales."""
        parts = [self.neuron(self.inner(self.enter(x)))]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, dim=2))


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> lbq.OverTime:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return lbq.OverTime(conv, nn.BatchNorm2d(outputs))


def spikeyolo_backbone(timesteps: int = 1) -> nn.Module:
    """Build a backbone in the style of SpikeYOLO: integer neurons 0..4, T = 1."""

    def neuron(channels: int) -> nn.Module:
        del channels
        return IntegerLIF(4)

    layers: list[nn.Module] = [lbq.RepeatOverTime(timesteps), _conv(3, 32, 7, 2)]
    inputs = 32
    for outputs, block, count in ((64, ConvBlock, 1), (128, ConvBlock, 3), (256, RepBlock, 3),
                                  (512, RepBlock, 1)):  # fmt: skip
        layers += [neuron(inputs), _conv(inputs, outputs, 3, 2)]
        layers += [block(outputs, neuron=neuron) for _ in range(count)]  # pyright: ignore
        inputs = outputs
    layers += [Pyramid(inputs, neuron), neuron(inputs)]
    layers += [lbq.OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(inputs, 80)]
    return nn.Sequential(*layers, lbq.MeanOverTime())


def binary(channels: int) -> BinaryLIF:
    """Return the neuron of SEW-ResNet."""
    del channels
    return BinaryLIF(threshold=1.0)


@torch.no_grad()
def spread(model: nn.Module) -> nn.Module:
    """Give weights and batch norms random values that make all layers emit."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.3)
    return model


@torch.no_grad()
def settle(model: nn.Module, images: Tensor) -> nn.Module:
    """Let batch norms learn the statistics of the images."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()(images)
    return model.eval()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-20, bursts 0..5, T=2": (lambda: lbq.resnet20(10), (8, 3, 32, 32)),
    "SEW-ResNet-18, binary, T=4": (
        lambda: lbq.resnet18(1000, timesteps=4, block="sew", neuron=binary),
        (2, 3, 224, 224),
    ),
    "E-SpikeFormer 5 M, levels 0..4, T=1": (lambda: spikeformer_5m(1000), (2, 3, 224, 224)),
    "SpikeYOLO-style backbone, 0..4, T=1": (spikeyolo_backbone, (2, 3, 320, 320)),
}


def pocket(source: str, count: int) -> Audit:
    """Audit the trained network on test images."""
    data = open_samples(pretrained_recipe(POCKET), source=source, cache=Path("~/.cache/lbq"))
    images = next(sample_batches(data, limit=count, batch=count)).real
    return lbq.audit(lbq.load_pretrained(POCKET), images)


def seconds(source: str, count: int) -> dict[str, float]:
    """Time an audit of the full ResNet-20 on test images, and its plain forward before and after.

    The weights are random.
    """
    data = open_samples(pretrained_recipe(POCKET), source=source, cache=Path("~/.cache/lbq"))
    images = next(sample_batches(data, limit=count, batch=count)).real
    torch.manual_seed(0)
    model, taken = settle(spread(lbq.resnet20(10)), images[:64]), list[float]()

    @torch.no_grad()
    def forward() -> None:
        for some in images.split(64):
            model(some)

    for run in (forward, lambda: lbq.audit(model, images), forward):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    plain = (taken[0] + taken[2]) / 2
    print(f"audit of {count} images: {taken[1]:.0f} s, {taken[1] / plain:.2f} x the forward")
    return {"images": count, "audit_s": taken[1], "plain_s": plain, "ratio": taken[1] / plain}


def row(name: str, found: Audit) -> dict[str, object]:
    """Return the figures of one network, per image."""
    counts, share = found["counts"].evidence, found["multiplications"].evidence["share"]
    return {
        "network": name,
        "images": found.num_samples,
        "macs": found.products.macs / found.num_samples,
        "real_share": share,
        **counts,
        "verdicts": {finding.key: finding.verdict for finding in found.findings},
    }


def main() -> None:
    """Audit every network; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="CIFAR-10, for the trained network")
    parser.add_argument(
        "--time", type=int, metavar="IMAGES", help="only time an audit, with --data"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.time:
        measured = seconds(options.data, options.time)
        write_record(options.out, {"commit": git_commit(), **measured})
        return
    rows: list[dict[str, object]] = []
    for name, (build, shape) in NETWORKS.items():
        torch.manual_seed(0)
        images = torch.randn(shape)
        rows.append(row(name, lbq.audit(settle(spread(build()), images), images)))
        _show(rows[-1])
    if options.data:
        rows.append(row("pocket ResNet-20, trained, T=2", pocket(options.data, 200)))
        _show(rows[-1])
    write_record(options.out, {"commit": git_commit(), "networks": rows})


def _show(found: dict[str, object]) -> None:
    million = {k: float(v) / 1e6 for k, v in found.items() if isinstance(v, float)}
    print(
        f"| {found['network']} | {million['macs']:,.0f} | "
        f"{million['active_times_flops']:,.1f} | {million['rate_times_flops']:,.1f} | "
        f"{million['unary_acs']:,.1f} | {million['bit_sparse_acs']:,.1f} | "
        f"{1e6 * million['exact_over_estimate']:.3f} | {million['level_products_unary']:,.2f} | "
        f"{1e8 * million['real_share']:.1f} % |",
        flush=True,
    )


if __name__ == "__main__":
    main()
