"""Networks as users write them, from many fields: small, complete, with real layer structure.

Each function returns a network; ``EXAMPLES`` says what enters it. Tests lower them all, and
``docs/deploy/coverage.md`` lists how that ended.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq import BurstLIF, LearnedStep, MeanOverTime, OverTime, RepeatOverTime
from lbq.neurons import BinaryLIF, IntegerLIF, TernaryLIF

IMAGES = (3, 8, 8)
EXAMPLES: dict[str, tuple[int, ...]] = {}
"""Shape of a batch of two for every network, by name."""
BATCH_AXES: dict[str, int] = {}
"""Axis of the batch, where four axes begin with time; otherwise as lbq.lower takes it."""
NETWORKS = {}
T = 2


def example(*shape, batch_axis=None):
    """Register a network that takes inputs of this shape."""

    def register(make):
        if batch_axis is not None:
            BATCH_AXES[make.__name__] = batch_axis
        NETWORKS[make.__name__] = make
        EXAMPLES[make.__name__] = shape
        return make

    return register


def conv_bn(inputs, outputs, kernel=3, **options):
    """A convolution without bias and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def stem(channels=8):
    """Images to levels."""
    return nn.Sequential(conv_bn(3, channels), RepeatOverTime(T), BurstLIF())


def head(channels, classes=5):
    """Levels to logits."""
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(OverTime(pool, nn.Flatten(), nn.Linear(channels, classes)), MeanOverTime())


class Sequence(nn.Module):
    """A stem, a body over time and a head."""

    def __init__(self, *body, channels=8, out=None):
        super().__init__()
        self.stem, self.body = stem(channels), nn.Sequential(*body)
        self.head = head(out or channels)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


@example(2, *IMAGES)
def vgg():
    """Convolutions and max pools."""
    parts = []
    for inputs, outputs in ((8, 12), (12, 16)):
        parts += [OverTime(conv_bn(inputs, outputs)), BurstLIF(), OverTime(nn.MaxPool2d(2))]
    return Sequence(*parts, out=16)


class Residual(nn.Module):
    """A block that adds currents, with a projection where shapes differ."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = OverTime(conv_bn(inputs, outputs, stride=stride))
        self.conv2 = OverTime(conv_bn(outputs, outputs))
        self.neuron1, self.neuron2 = BurstLIF(), BurstLIF()
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = OverTime(conv_bn(inputs, outputs, 1, stride=stride))

    def forward(self, x):
        return self.neuron2(self.conv2(self.neuron1(self.conv1(x))) + self.shortcut(x))


@example(2, *IMAGES)
def resnet():
    """Sums of branches."""
    return Sequence(Residual(8, 8, 1), Residual(8, 12, 2), out=12)


class PreActivation(nn.Module):
    """Currents go around the neurons."""

    def __init__(self, channels):
        super().__init__()
        self.neuron1, self.neuron2 = BurstLIF(), BurstLIF()
        self.conv1, self.conv2 = (
            OverTime(conv_bn(channels, channels)),
            OverTime(conv_bn(channels, channels)),
        )

    def forward(self, x):
        return x + self.conv2(self.neuron2(self.conv1(self.neuron1(x))))


@example(2, *IMAGES)
def membrane_shortcuts():
    """Shortcuts of currents (MS-ResNet)."""
    first = nn.Sequential(conv_bn(3, 8), RepeatOverTime(T))
    return nn.Sequential(first, PreActivation(8), PreActivation(8), BurstLIF(), head(8))


@example(2, *IMAGES)
def mobilenet():
    """Depthwise and pointwise convolutions with a residual, in the order of MobileNetV2."""

    class Inverted(nn.Module):
        def __init__(self, channels, ratio=2):
            super().__init__()
            hidden = channels * ratio
            self.expand, self.project = (
                OverTime(conv_bn(channels, hidden, 1)),
                OverTime(conv_bn(hidden, channels, 1)),
            )
            self.depthwise = OverTime(conv_bn(hidden, hidden, groups=hidden))
            self.neurons = nn.ModuleList([BurstLIF(), BurstLIF(), BurstLIF()])

        def forward(self, x):
            y = self.neurons[0](self.expand(x))
            y = self.neurons[1](self.depthwise(y))
            return self.neurons[2](self.project(y) + x)

    return Sequence(Inverted(8), Inverted(8))


@example(2, *IMAGES)
def convnext():
    """Depthwise 7x7, pointwise layers on channels last, batch norms instead of layer norms."""

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.depthwise = OverTime(
                nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
                nn.BatchNorm2d(channels),
            )
            self.neuron1, self.neuron2, self.neuron3 = BurstLIF(), BurstLIF(), BurstLIF()
            self.wide, self.narrow = (
                nn.Linear(channels, 4 * channels),
                nn.Linear(4 * channels, channels),
            )

        def forward(self, x):
            y = self.neuron1(self.depthwise(x)).permute(0, 1, 3, 4, 2)
            y = self.narrow(self.neuron2(self.wide(y)))
            return self.neuron3(x + y.permute(0, 1, 4, 2, 3))

    return Sequence(Block(8))


@example(2, *IMAGES)
def shifted_windows():
    """Windows of a rolled map, tokens of each mixed by a linear layer (Swin)."""

    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix, self.out = nn.Linear(16, 16), OverTime(conv_bn(8, 8, 1))
            self.neuron1, self.neuron2 = BurstLIF(), BurstLIF()

        def forward(self, x):
            t, b, c, h, w = x.shape
            y = torch.roll(x, (-2, -2), (3, 4))
            y = y.reshape(t, b, c, h // 4, 4, w // 4, 4).transpose(4, 5).flatten(5)
            y = self.mix(y).unflatten(5, (4, 4)).transpose(4, 5).reshape(t, b, c, h, w)
            y = torch.roll(self.neuron1(y), (2, 2), (3, 4))
            return self.neuron2(self.out(y))

    return Sequence(Windows())


@example(2, *IMAGES)
def rolled_channels():
    """Channels moved around before a convolution; OpenVINO mistakes a Gather there."""

    class Rolled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.neuron = OverTime(conv_bn(8, 8, 1)), BurstLIF()

        def forward(self, x):
            return self.neuron(self.conv(x.roll(3, 2)))

    return Sequence(Rolled())


@example(2, *IMAGES)
def both_directions():
    """A map, and the same from right to left, with shared weights."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.neuron = OverTime(conv_bn(8, 8, 3)), BurstLIF()

        def forward(self, x):
            return self.neuron(self.conv(x) + self.conv(x.flip(-1)).flip(-1))

    return Sequence(Both())


@example(2, *IMAGES)
def unet():
    """Two scales, nearest upsampling and a concatenation of levels."""

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.pool = stem(8), OverTime(nn.MaxPool2d(2))
            self.down, self.up = (
                OverTime(conv_bn(8, 16)),
                OverTime(nn.Upsample(scale_factor=2), conv_bn(16, 8)),
            )
            self.neuron1, self.neuron2, self.neuron3 = BurstLIF(), BurstLIF(), BurstLIF()
            self.join, self.last = OverTime(conv_bn(16, 8)), OverTime(nn.Conv2d(8, 4, 1))

        def forward(self, x):
            x = self.stem(x)
            low = self.neuron1(self.down(self.pool(x)))
            up = self.neuron2(self.up(low))
            joined = self.neuron3(self.join(torch.cat([x, up], dim=2)))
            return self.last(joined).mean(0)

    return UNet()


@example(2, *IMAGES)
def unet_transposed():
    """Upsampling by a transposed convolution, concatenated currents."""

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.down = stem(8), OverTime(conv_bn(8, 16, stride=2))
            self.up = OverTime(nn.ConvTranspose2d(16, 8, 2, stride=2), nn.BatchNorm2d(8))
            self.same = OverTime(conv_bn(8, 8))
            self.neuron1, self.neuron2 = BurstLIF(), BurstLIF()
            self.last = OverTime(nn.Conv2d(16, 4, 1))

        def forward(self, x):
            x = self.stem(x)
            currents = torch.cat([self.same(x), self.up(self.neuron1(self.down(x)))], 2)
            return self.last(self.neuron2(currents)).mean(0)

    return UNet()


@example(2, *IMAGES)
def transposed_odd():
    """A transposed convolution with stride 2, padding and output padding."""
    up = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    return Sequence(OverTime(up), BurstLIF(), out=6)


@example(2, *IMAGES)
def sppf():
    """Chained max pools whose results are concatenated (YOLO)."""

    class SPPF(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.first, self.last = (
                conv_bn(channels, channels // 2, 1),
                conv_bn(2 * channels, channels, 1),
            )
            self.neuron1, self.neuron2 = BurstLIF(), BurstLIF()
            self.pool = nn.MaxPool2d(5, stride=1, padding=2)

        def forward(self, x):
            y = self.neuron1(OverTime(self.first)(x))
            frames = y.flatten(0, 1)
            pools = [frames]
            for _ in range(3):
                pools.append(self.pool(pools[-1]))
            return self.neuron2(self.last(torch.cat(pools, 1)).unflatten(0, (T, -1)))

    return Sequence(SPPF(8))


@example(2, *IMAGES)
def rep_conv():
    """Three branches of one convolution that are added before the neuron (RepVGG)."""

    class RepConv(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.wide, self.narrow = (
                OverTime(conv_bn(channels, channels)),
                OverTime(conv_bn(channels, channels, 1)),
            )
            self.identity, self.neuron = OverTime(nn.BatchNorm2d(channels)), BurstLIF()

        def forward(self, x):
            return self.neuron(self.wide(x) + self.narrow(x) + self.identity(x))

    return Sequence(RepConv(8), RepConv(8))


@example(2, *IMAGES)
def linear_chain():
    """Two convolutions and batch norms without a neuron between them."""
    return Sequence(OverTime(conv_bn(8, 12, 1), conv_bn(12, 8, 1)), BurstLIF())


@example(2, *IMAGES)
def sep_conv():
    """Pointwise, depthwise, pointwise with neurons between (E-SpikeFormer)."""
    parts = [OverTime(conv_bn(8, 16, 1)), BurstLIF(4), OverTime(conv_bn(16, 16, 7, groups=16))]
    return Sequence(*parts, BurstLIF(4), OverTime(conv_bn(16, 8, 1)), BurstLIF(4))


@example(2, *IMAGES)
def csp():
    """Channels are split, one half is transformed, both are joined."""

    class CSP(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.inner, self.outer = (
                OverTime(conv_bn(channels // 2, channels // 2)),
                OverTime(conv_bn(channels, channels, 1)),
            )
            self.neuron1, self.neuron2 = BurstLIF(), BurstLIF()

        def forward(self, x):
            kept, changed = x.chunk(2, dim=2)
            changed = self.neuron1(self.inner(changed))
            return self.neuron2(self.outer(torch.cat((kept, changed), dim=2)))

    return Sequence(CSP(8))


@example(2, *IMAGES)
def shuffle():
    """Grouped convolutions and a shuffle of channels (ShuffleNet)."""

    class Shuffle(nn.Module):
        def __init__(self, channels, groups):
            super().__init__()
            self.conv, self.neuron, self.groups = (
                OverTime(conv_bn(channels, channels, groups=groups)),
                BurstLIF(),
                groups,
            )

        def forward(self, x):
            t, b, c, h, w = x.shape
            x = (
                x.view(t, b, self.groups, c // self.groups, h, w)
                .transpose(2, 3)
                .reshape(t, b, c, h, w)
            )
            return self.neuron(self.conv(x))

    return Sequence(Shuffle(8, 4), Shuffle(8, 2))


@example(2, *IMAGES)
def focus():
    """Every second pixel becomes a channel (the stem of YOLOv5)."""

    class Focus(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.neuron, self.head = conv_bn(12, 8), BurstLIF(), head(8)

        def forward(self, x):
            parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
            x = self.conv(torch.cat(parts, 1))
            return self.head(self.neuron(x.unsqueeze(0).repeat(T, 1, 1, 1, 1)))

    return Focus()


@example(2, *IMAGES)
def pixel_unshuffle():
    """Space to depth between two layers."""
    return Sequence(OverTime(nn.PixelUnshuffle(2), conv_bn(32, 8)), BurstLIF())


@example(2, *IMAGES)
def pixel_shuffle():
    """Depth to space (super-resolution)."""
    return nn.Sequential(
        stem(8), OverTime(nn.PixelShuffle(2), nn.Conv2d(2, 3, 3, padding=1)), MeanOverTime()
    )


@example(2, *IMAGES)
def padded():
    """Asymmetric padding, as TensorFlow's "same" has it."""
    return Sequence(OverTime(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(8, 8, 3, stride=2)), BurstLIF())


@example(2, *IMAGES)
def same_padding():
    """Padding by name."""
    return Sequence(OverTime(nn.Conv2d(8, 8, 3, padding="same", dilation=2)), BurstLIF())


@example(2, *IMAGES)
def dilated():
    """Parallel dilated convolutions that are added (ASPP)."""

    class ASPP(nn.Module):
        def __init__(self, channels):
            super().__init__()
            rates = (1, 2, 3)
            self.branches = nn.ModuleList(
                OverTime(
                    nn.Conv2d(channels, channels, 3, padding=r, dilation=r),
                    nn.BatchNorm2d(channels),
                )
                for r in rates
            )
            self.neuron = BurstLIF()

        def forward(self, x):
            return self.neuron(sum(branch(x) for branch in self.branches))

    return Sequence(ASPP(8))


@example(2, *IMAGES)
def functional():
    """No modules but neurons: weights are parameters."""

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1, self.w2 = (
                nn.Parameter(torch.randn(8, 3, 3, 3) / 3),
                nn.Parameter(torch.randn(8, 8, 3, 3) / 6),
            )
            self.w3, self.b3 = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(5))
            self.neuron1, self.neuron2 = BurstLIF(), BurstLIF()

        def forward(self, x):
            x = F.conv2d(x, self.w1, padding=1).expand(T, -1, -1, -1, -1)
            x = self.neuron1(x)
            t, b = x.shape[:2]
            x = F.conv2d(x.reshape(t * b, *x.shape[2:]), self.w2, padding=1, stride=2)
            x = self.neuron2(x.reshape(t, b, *x.shape[1:]))
            return F.linear(x.mean((3, 4)), self.w3, self.b3).mean(0)

    return Functional()


@example(2, *IMAGES)
def shared():
    """One convolution and one neuron used twice (a recurrent block)."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.conv, self.neuron, self.head = (
                stem(8),
                OverTime(conv_bn(8, 8)),
                BurstLIF(),
                head(8),
            )

        def forward(self, x):
            x = self.stem(x)
            for _ in range(2):
                x = self.neuron(self.conv(x))
            return self.head(x)

    return Shared()


@example(2, *IMAGES)
def two_heads():
    """A class and a box."""

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.classes, self.box = stem(8), head(8, 5), head(8, 4)

        def forward(self, x):
            x = self.stem(x)
            return self.classes(x), self.box(x)

    return TwoHeads()


@example(2, *IMAGES)
def pyramid():
    """Outputs at two scales, from a dictionary."""

    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.down, self.neuron = (
                stem(8),
                OverTime(conv_bn(8, 8, stride=2)),
                BurstLIF(),
            )
            self.fine, self.coarse = OverTime(nn.Conv2d(8, 3, 1)), OverTime(nn.Conv2d(8, 3, 1))

        def forward(self, x):
            fine = self.stem(x)
            coarse = self.neuron(self.down(fine))
            return {"fine": self.fine(fine).mean(0), "coarse": self.coarse(coarse).mean(0)}

    return Pyramid()


@example(T, 2, 2, 8, 8)
def event_frames():
    """Frames of events."""
    parts = [OverTime(conv_bn(2, 8)), BurstLIF(), OverTime(nn.AvgPool2d(2), conv_bn(8, 8))]
    return nn.Sequential(*parts, BurstLIF(), head(8))


@example(3, 2, 20)
def mlp():
    """Layers on feature vectors over time."""
    return nn.Sequential(
        nn.Linear(20, 16),
        BurstLIF(),
        nn.Linear(16, 16),
        BurstLIF(),
        nn.Linear(16, 4),
        MeanOverTime(),
    )


@example(2, 20)
def static_mlp():
    """Layers on static feature vectors."""
    return nn.Sequential(
        nn.Linear(20, 16), RepeatOverTime(T), BurstLIF(), nn.Linear(16, 4), MeanOverTime()
    )


@example(T, 2, 3, 32, batch_axis=1)
def audio():
    """One-dimensional convolutions over samples of sound."""
    parts = []
    for inputs, outputs in ((3, 8), (8, 12)):
        conv = nn.Conv1d(inputs, outputs, 5, stride=2, padding=2)
        parts += [OverTime(conv, nn.BatchNorm1d(outputs)), BurstLIF(), OverTime(nn.MaxPool1d(2))]
    last = OverTime(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(12, 4))
    return nn.Sequential(*parts, last, MeanOverTime())


@example(T, 2, 3, 32, batch_axis=1)
def tcn():
    """Dilated causal convolutions with residuals."""

    class Causal(nn.Module):
        def __init__(self, channels, dilation):
            super().__init__()
            self.pad = 2 * dilation
            self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
            self.norm, self.neuron = nn.BatchNorm1d(channels), BurstLIF()

        def forward(self, x):
            y = F.pad(x.flatten(0, 1), (self.pad, 0))
            return self.neuron(self.norm(self.conv(y)).unflatten(0, x.shape[:2]) + x)

    last = OverTime(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4))
    first = nn.Sequential(OverTime(nn.Conv1d(3, 8, 1)), BurstLIF())
    return nn.Sequential(first, Causal(8, 1), Causal(8, 2), last, MeanOverTime())


class Attention(nn.Module):
    """Attention of levels without softmax, tokens ``[T, B, N, C]``."""

    def __init__(self, channels, heads, *, order="(qk)v"):
        super().__init__()
        self.heads, self.order, self.scale = heads, order, (channels // heads) ** -0.5
        self.q, self.k, self.v = (nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(channels) for _ in range(4))
        self.q_neuron, self.k_neuron, self.v_neuron, self.neuron = (
            BurstLIF(4, step=0.5) for _ in range(4)
        )
        self.out, self.last = nn.Linear(channels, channels), BurstLIF(4, step=0.5)

    def project(self, x: Tensor, layer, norm, neuron) -> Tensor:
        """Return ``[T, B, heads, N, d]``."""
        t, b, n, c = x.shape
        y = norm(layer(x).flatten(0, 1).transpose(1, 2)).transpose(1, 2).reshape(t, b, n, c)
        return neuron(y).reshape(t, b, n, self.heads, c // self.heads).permute(0, 1, 3, 2, 4)

    def forward(self, x):
        t, b, n, c = x.shape
        q = self.project(x, self.q, self.norms[0], self.q_neuron)
        k = self.project(x, self.k, self.norms[1], self.k_neuron)
        v = self.project(x, self.v, self.norms[2], self.v_neuron)
        y = (
            (q @ k.transpose(-2, -1)) @ v
            if self.order == "(qk)v"
            else q @ (k.transpose(-2, -1) @ v)
        )
        y = self.neuron((y * self.scale).transpose(2, 3).reshape(t, b, n, c))
        y = self.norms[3](self.out(y).flatten(0, 1).transpose(1, 2)).transpose(1, 2)
        return self.last(y.reshape(t, b, n, c) + x)


@example(2, *IMAGES)
def token_transformer():
    """Patches, attention of levels, an MLP over tokens, a mean over tokens."""

    class Transformer(nn.Module):
        def __init__(self, order="(qk)v"):
            super().__init__()
            self.patches, self.norm = nn.Conv2d(3, 8, 2, stride=2), nn.BatchNorm2d(8)
            self.repeat, self.neuron = RepeatOverTime(T), BurstLIF(4)
            self.attention = Attention(8, 2, order=order)
            self.mlp = nn.Sequential(nn.Linear(8, 16), BurstLIF(4), nn.Linear(16, 8))
            self.last, self.classify = BurstLIF(4), nn.Linear(8, 5)

        def forward(self, x):
            x = self.norm(self.patches(x)).flatten(2).transpose(1, 2)  # [B, N, C]
            x = self.attention(self.neuron(self.repeat(x)))
            x = self.last(self.mlp(x) + x)
            return self.classify(x.mean(2)).mean(0)

    return Transformer()


@example(2, *IMAGES)
def linear_attention():
    """The other association: Q (K^T V)."""
    make = token_transformer
    model = make()
    model.attention.order = "q(kv)"
    return model


@example(2, *IMAGES)
def conv_attention():
    """Attention on maps with 1x1 convolutions, as Spikformer and E-SpikeFormer write it."""

    class SSA(nn.Module):
        def __init__(self, channels, heads=2):
            super().__init__()
            self.heads = heads
            self.q, self.k, self.v, self.out = (
                OverTime(conv_bn(channels, channels, 1)) for _ in range(4)
            )
            self.nq, self.nk, self.nv, self.na, self.no = (BurstLIF(4, step=0.5) for _ in range(5))

        def forward(self, x):
            t, b, c, h, w = x.shape
            q, k, v = (
                neuron(layer(x))
                .flatten(3)
                .reshape(t, b, self.heads, c // self.heads, h * w)
                .transpose(-1, -2)
                for layer, neuron in ((self.q, self.nq), (self.k, self.nk), (self.v, self.nv))
            )
            y = (q @ k.transpose(-2, -1)) @ v * 0.125
            y = self.na(y.transpose(3, 4).reshape(t, b, c, h, w))
            return self.no(self.out(y) + x)

    return Sequence(SSA(8))


@example(2, *IMAGES)
def qk_attention():
    """QK attention: levels of a sum over channels gate the keys (QKFormer)."""

    class QK(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.q, self.k, self.out = (OverTime(conv_bn(channels, channels, 1)) for _ in range(3))
            self.nq, self.nk, self.na, self.no = BurstLIF(), BurstLIF(), BurstLIF(1), BurstLIF()

        def forward(self, x):
            q, k = self.nq(self.q(x)), self.nk(self.k(x))
            gate = self.na(q.sum(2, keepdim=True))
            return self.no(self.out(gate * k))

    return Sequence(QK(8))


@example(2, *IMAGES)
def gated():
    """Two branches of levels multiplied (a gate)."""

    class Gate(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.value, self.gate, self.out = (
                OverTime(conv_bn(channels, channels)) for _ in range(3)
            )
            self.n1, self.n2, self.n3 = BurstLIF(), BurstLIF(1), BurstLIF()

        def forward(self, x):
            return self.n3(self.out(self.n1(self.value(x)) * self.n2(self.gate(x))))

    return Sequence(Gate(8))


@example(2, *IMAGES)
def position_embedding():
    """Tokens with a learned position embedding, added to currents."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, stride=4)
            self.positions = nn.Parameter(torch.randn(1, 4, 8))
            self.repeat, self.neuron, self.last = RepeatOverTime(T), BurstLIF(), nn.Linear(8, 5)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
            return self.last(self.neuron(self.repeat(x)).mean(2)).mean(0)

    return Positions()


@example(2, *IMAGES)
def mixer():
    """Linear layers over tokens, then over channels (MLP-Mixer)."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.repeat = nn.Conv2d(3, 8, 2, stride=2), RepeatOverTime(T)
            self.tokens, self.channels = nn.Linear(16, 16), nn.Linear(8, 8)
            self.n1, self.n2, self.n3 = BurstLIF(), BurstLIF(), BurstLIF()
            self.last = nn.Linear(8, 5)

        def forward(self, x):
            x = self.n1(self.repeat(self.patches(x).flatten(2)))  # [T, B, C, N]
            x = self.n2(self.tokens(x) + x)
            x = self.n3(self.channels(x.transpose(2, 3)))
            return self.last(x.mean(2)).mean(0)

    return Mixer()


@example(2, *IMAGES)
def einsums():
    """Projections, heads, products of levels and the mean over tokens, each as an einsum."""

    class Einsums(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.repeat = nn.Conv2d(3, 8, 2, stride=2), RepeatOverTime(T)
            self.qkv = nn.ParameterList(torch.randn(2, 4, 8) / 2 for _ in range(3))
            self.out, self.last = nn.Parameter(torch.randn(8, 2, 4)), nn.Linear(8, 5)
            self.neurons = nn.ModuleList(BurstLIF(4, step=0.5) for _ in range(6))

        def forward(self, x):
            n = self.neurons
            x = n[0](self.repeat(self.patches(x).flatten(2)))  # [T, B, C, N]
            q, k, v = (
                n[i + 1](torch.einsum("tbcn,hdc->tbhnd", x, w)) for i, w in enumerate(self.qkv)
            )
            y = torch.einsum("...md,...nd", q, k)  # [T, B, heads, N, N]
            y = n[4](torch.einsum("tbhmn,tbhnd->tbhmd", y, v) * 0.125)
            y = n[5](torch.einsum("ohd,tbhnd->tbno", self.out, y))
            return torch.einsum("tbno->bo", self.last(y))

    return Einsums()


@example(2, *IMAGES)
def flattened():
    """Flattened maps into a linear layer, as LeNet has it."""
    last = nn.Sequential(OverTime(nn.Flatten(), nn.Linear(8 * 16, 5)), MeanOverTime())
    return nn.Sequential(stem(8), OverTime(nn.AvgPool2d(2)), last)


@example(2, *IMAGES)
def channel_steps():
    """A step for every channel."""
    steps = BurstLIF(step=LearnedStep(0.5, channels=12))
    return Sequence(OverTime(conv_bn(8, 12)), steps, OverTime(conv_bn(12, 8, groups=4)), BurstLIF())


@example(2, *IMAGES)
def binary():
    """Binary spikes."""
    return Sequence(OverTime(conv_bn(8, 8)), BinaryLIF(), OverTime(nn.MaxPool2d(2)))


@example(2, *IMAGES)
def integer_lif():
    """I-LIF neurons (SpikeYOLO)."""
    return Sequence(OverTime(conv_bn(8, 8)), IntegerLIF(), OverTime(conv_bn(8, 8)), IntegerLIF())


@example(2, *IMAGES)
def ternary():
    """Levels with a sign: exact in real numbers, no integer form."""
    return Sequence(OverTime(conv_bn(8, 8)), TernaryLIF(), OverTime(conv_bn(8, 8)), BurstLIF())


@example(2, *IMAGES)
def adaptive_pools():
    """Adaptive pools to several sizes, joined (a spatial pyramid)."""

    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.last = stem(8), nn.Linear(8 * (1 + 4 + 16), 5)

        def forward(self, x):
            x = self.stem(x).flatten(0, 1)
            pools = [F.adaptive_avg_pool2d(x, n).flatten(1) for n in (1, 2, 4)]
            return self.last(torch.cat(pools, 1)).unflatten(0, (T, -1)).mean(0)

    return Pyramid()


@example(2, *IMAGES)
def max_of_currents():
    """A max pool of currents, before the neuron."""
    return Sequence(OverTime(conv_bn(8, 8), nn.MaxPool2d(2)), BurstLIF())


@example(2, *IMAGES)
def dense_block():
    """Every layer reads all layers before it (DenseNet)."""

    class Dense(nn.Module):
        def __init__(self, channels, growth=4, layers=3):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(OverTime(conv_bn(channels + i * growth, growth)), BurstLIF())
                for i in range(layers)
            )

        def forward(self, x):
            found = [x]
            for layer in self.layers:
                found.append(layer(torch.cat(found, 2)))
            return torch.cat(found, 2)

    return Sequence(Dense(8), out=20)


@example(2, *IMAGES)
def global_max():
    """The largest level of every channel."""
    last = OverTime(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return nn.Sequential(stem(8), last, MeanOverTime())


@example(2, *IMAGES)
def sequence_output():
    """Logits of every timestep."""
    return nn.Sequential(stem(8), OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))


@example(2, *IMAGES)
def layer_norm():
    """A layer norm between layers: refused."""
    return Sequence(OverTime(nn.Conv2d(8, 8, 3, padding=1), nn.LayerNorm([8, 8, 8])), BurstLIF())


@example(2, *IMAGES)
def group_norm():
    """A group norm between layers: refused."""
    return Sequence(OverTime(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)), BurstLIF())


@example(2, *IMAGES)
def softmax_attention():
    """Attention with a softmax: refused."""

    class Softmax(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.qkv, self.neuron, self.last = (
                stem(8),
                nn.Linear(8, 24),
                BurstLIF(),
                nn.Linear(8, 5),
            )

        def forward(self, x):
            x = self.stem(x).flatten(3).transpose(2, 3)
            q, k, v = self.qkv(x).chunk(3, -1)
            x = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1) @ v
            return self.last(self.neuron(x).mean(2)).mean(0)

    return Softmax()


@example(2, *IMAGES)
def gelu():
    """A smooth activation between layers: refused."""
    return Sequence(OverTime(nn.Conv2d(8, 8, 3, padding=1), nn.GELU()), BurstLIF())


@example(2, *IMAGES)
def squeeze_excite():
    """A gate of real numbers (a sigmoid): refused."""

    class Squeeze(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels, 1), nn.Sigmoid()
            )

        def forward(self, x):
            return x * self.gate(x)

    return Sequence(OverTime(conv_bn(8, 8), Squeeze(8)), BurstLIF())


@example(2, *IMAGES)
def bilinear():
    """Bilinear upsampling: refused."""
    up = nn.Upsample(scale_factor=2, mode="bilinear")
    return Sequence(OverTime(up, nn.Conv2d(8, 8, 3, padding=1)), BurstLIF())
