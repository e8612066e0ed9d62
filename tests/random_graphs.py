"""Random networks over the whole set of operators, written as modules and functions mixed.

A network holds a list of tensors of levels, ``[T, B, C, *space]``, one or two spatial axes. Each
step reads some of them and appends one. The head reads the last one, or the last two.
"""

import random

import torch
from torch import nn
from torch.nn import functional as F

import lbq
from lbq import MeanOverTime, OverTime, RepeatOverTime, neurons

_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d}
_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}
_MAXIMA = {1: F.max_pool1d, 2: F.max_pool2d}
_MEANS = {1: F.avg_pool1d, 2: F.avg_pool2d}


class Step(nn.Module):
    """Modules, and a function of them and of earlier tensors."""

    def __init__(self, name, function, sources, **modules):
        super().__init__()
        self.name, self.function, self.sources = name, function, sources
        for key, module in modules.items():
            setattr(self, key, module)

    def forward(self, tensors):
        return self.function(self, *(tensors[source] for source in self.sources))


class RandomGraph(nn.Module):
    """A random network.

    Args:
        seed: decides everything.
        steps: number of random steps between stem and head.
    """

    def __init__(self, seed, *, steps=None):
        super().__init__()
        self._dice = dice = random.Random(seed)
        torch.manual_seed(seed)
        self.rank = dice.choice([1, 2, 2])
        self.timesteps, self.takes_frames = dice.choice([1, 2, 3]), dice.random() < 0.4
        size = dice.choice([6, 8])
        self.input_shape = (dice.choice([1, 2, 3]), *[size] * self.rank)
        channels = dice.choice([4, 8])
        conv = self._conv(self.input_shape[0], channels)
        stem = (
            OverTime(*conv)
            if self.takes_frames
            else nn.Sequential(*conv, RepeatOverTime(self.timesteps))
        )
        self.stem = nn.Sequential(stem, self._neuron(channels))
        self.shapes = [(channels, *self.input_shape[1:])]
        self.steps = nn.ModuleList()
        while len(self.steps) < (steps or dice.randint(2, 5)):
            made = dice.choice(STEPS)(self, dice)
            if made is not None:
                self.steps.append(made[0])
                self.shapes.append(made[1])
        self.heads = nn.ModuleList()
        for source in range(-1, -1 - dice.choice([1, 1, 1, 2]), -1):
            self.heads.append(self._head(self.shapes[source]))
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2)
                module.weight.data.uniform_(-0.3, 1.5)
                module.bias.data.normal_(0, 0.3)
        self.eval()

    @property
    def batch_axis(self):
        return 1 if self.takes_frames else 0

    @property
    def names(self):
        """Names of the steps."""
        return [step.name for step in self.steps]

    def inputs(self, batch=3):
        """Return random bytes."""
        shape = (batch, *self.input_shape)
        return torch.randint(
            0, 256, (self.timesteps, *shape) if self.takes_frames else shape, dtype=torch.uint8
        )

    def forward(self, x):
        tensors = [self.stem(x)]
        for step in self.steps:
            tensors.append(step(tensors))
        answers = [head(tensors[-1 - i]) for i, head in enumerate(self.heads)]
        return answers[0] if len(answers) == 1 else tuple(answers)

    def _conv(self, inputs, outputs, *, groups=1, kernel=None, stride=1):
        dice = self._dice
        kernel, dilation = kernel or dice.choice([1, 3]), dice.choice([1, 1, 2])
        conv = _CONVOLUTIONS[self.rank](
            inputs,
            outputs,
            kernel,
            stride,
            padding=dilation * (kernel // 2),
            dilation=dilation,
            groups=groups,
            bias=dice.random() < 0.5,
        )
        return (conv, _NORMS[self.rank](outputs)) if dice.random() < 0.8 else (conv,)

    def _neuron(self, channels):
        dice = self._dice
        step = (
            lbq.LearnedStep(0.3, channels=channels)
            if dice.random() < 0.2
            else dice.uniform(0.2, 0.6)
        )
        kinds = [
            lambda: lbq.BurstLIF(dice.choice([1, 3, 5]), step=step),
            lambda: lbq.BurstLIF(4, step=0.4, reset_mode=dice.choice(["level", "none"])),
            lambda: neurons.BinaryLIF(threshold=0.5),
        ]
        return dice.choice(kinds[:1] * 3 + kinds)()

    def _plain_neuron(self, levels=3):
        """Return a neuron with one step for all channels."""
        return lbq.BurstLIF(levels, step=self._dice.uniform(0.2, 0.6))

    def _head(self, shape):
        if self._dice.random() < 0.5:
            pool = nn.Sequential(OverTime(nn.Flatten(2)), _MeanOverSpace())
            return nn.Sequential(pool, nn.Linear(shape[0], 5), MeanOverTime())
        features = int(torch.tensor(shape).prod())
        return nn.Sequential(OverTime(nn.Flatten(), nn.Linear(features, 5)), MeanOverTime())

    def pick(self, condition=lambda shape: True):
        """Return an earlier tensor and its shape; None if there is none."""
        found = [i for i, shape in enumerate(self.shapes) if condition(shape)]
        if not found:
            return None
        source = self._dice.choice(found)
        return source, self.shapes[source]


class _MeanOverSpace(nn.Module):
    def forward(self, x):
        return x.mean(-1)


def _layer(net, dice):
    source, (channels, *space) = net.pick()
    outputs = dice.choice([4, 8])
    groups = dice.choice([1, 1, channels]) if outputs % channels == 0 else 1
    stride = 2 if min(space) >= 6 and dice.random() < 0.3 else 1
    conv = net._conv(channels, outputs, groups=groups, stride=stride)
    made = Step(
        "layer",
        lambda self, x: self.neuron(self.conv(x)),
        (source,),
        conv=OverTime(*conv),
        neuron=net._neuron(outputs),
    )
    return made, (outputs, *(-(-n // stride) for n in space))


def _transposed(net, dice):
    source, (channels, *space) = net.pick(lambda shape: max(shape[1:]) <= 6) or (None, (0,))
    if source is None:
        return None
    kernel, padding = dice.choice([(2, 0), (3, 1), (4, 1)])
    extra = dice.choice([0, 1])
    conv = _TRANSPOSED[net.rank](
        channels, 4, kernel, stride=2, padding=padding, output_padding=extra
    )
    made = Step(
        "transposed",
        lambda self, x: self.neuron(self.conv(x)),
        (source,),
        conv=OverTime(conv),
        neuron=net._neuron(4),
    )
    return made, (4, *((n - 1) * 2 - 2 * padding + kernel + extra for n in space))


def _residual(net, dice):
    source, (channels, *space) = net.pick()
    other, _ = net.pick(lambda shape: shape == (channels, *space))
    conv = OverTime(*net._conv(channels, channels))
    factor = dice.choice([1, 0.5])
    made = Step(
        "residual",
        lambda self, x, y: self.neuron(self.conv(x) + factor * y),
        (source, other),
        conv=conv,
        neuron=net._neuron(channels),
    )
    return made, (channels, *space)


def _join_levels(net, dice):
    source, (channels, *space) = net.pick()
    other, (more, *_) = net.pick(lambda shape: list(shape[1:]) == space)
    if channels + more > 24:
        return None
    return Step("join levels", lambda self, x, y: torch.cat([x, y], dim=2), (source, other)), (
        channels + more,
        *space,
    )


def _join_currents(net, dice):
    source, (channels, *space) = net.pick()
    convs = [OverTime(*net._conv(channels, 4)) for _ in range(2)]
    made = Step(
        "join currents",
        lambda self, x: self.neuron(torch.cat((self.a(x), self.b(x)), 2)),
        (source,),
        a=convs[0],
        b=convs[1],
        neuron=net._neuron(8),
    )
    return made, (8, *space)


def _join_space(net, dice):
    source, (channels, *space) = net.pick(lambda shape: shape[1] <= 8) or (None, (0,))
    if source is None:
        return None
    return Step("join space", lambda self, x: torch.cat([x, x], dim=3), (source,)), (
        channels,
        2 * space[0],
        *space[1:],
    )


def _part(net, dice):
    source, (channels, *space) = net.pick(lambda shape: shape[0] >= 4) or (None, (0,))
    if source is None:
        return None
    start = dice.choice([0, 1])
    if dice.random() < 0.5 and min(space) >= 4:
        made = Step("every second", lambda self, x: x[..., start::2], (source,))
        return made, (channels, *space[:-1], len(range(start, space[-1], 2)))
    made = Step("part", lambda self, x: x[:, :, start : start + 3], (source,))
    return made, (3, *space)


def _halves(net, dice):
    source, (channels, *space) = net.pick(lambda shape: shape[0] % 2 == 0) or (None, (0,))
    if source is None:
        return None

    def swap(self, x):
        first, second = x.chunk(2, dim=2)
        return torch.cat([second, first], dim=2)

    return Step("swap halves", swap, (source,)), (channels, *space)


def _roll(net, dice):
    source, shape = net.pick(lambda shape: True) or (None, (0,))
    if source is None:
        return None
    axis, is_flip = 2 + dice.randrange(len(shape)), dice.random() < 0.5
    shift = dice.randint(1, 5)

    def around(self, x):
        return x.flip(axis) if is_flip else x.roll(shift, axis)

    return Step("flip" if is_flip else "roll", around, (source,)), shape


def _upsample(net, dice):
    source, (channels, *space) = net.pick(lambda shape: max(shape[1:]) <= 6) or (None, (0,))
    if source is None:
        return None
    made = Step(
        "upsample", lambda self, x: self.up(x), (source,), up=OverTime(nn.Upsample(scale_factor=2))
    )
    return made, (channels, *(2 * n for n in space))


def _max_pool(net, dice):
    source, (channels, *space) = net.pick(lambda shape: min(shape[1:]) >= 4) or (None, (0,))
    if source is None:
        return None
    pool = _MAXIMA[net.rank]
    made = Step(
        "max pool",
        lambda self, x: pool(x.flatten(0, 1), 3, 2, 1).unflatten(0, x.shape[:2]),
        (source,),
    )
    return made, (channels, *((n - 1) // 2 + 1 for n in space))


def _mean_pool(net, dice):
    source, (channels, *space) = net.pick(lambda shape: min(shape[1:]) >= 4) or (None, (0,))
    if source is None:
        return None
    pool, conv = _MEANS[net.rank], OverTime(*net._conv(channels, 4))

    def forward(self, x):
        return self.neuron(self.conv(pool(x.flatten(0, 1), 2).unflatten(0, x.shape[:2])))

    made = Step("mean pool", forward, (source,), conv=conv, neuron=net._neuron(4))
    return made, (4, *(n // 2 for n in space))


def _pooled_currents(net, dice):
    source, (channels, *space) = net.pick(lambda shape: min(shape[1:]) >= 4) or (None, (0,))
    if source is None:
        return None
    pool = dice.choice([_MAXIMA, _MEANS])[net.rank]
    conv = nn.Sequential(*net._conv(channels, 4))

    def forward(self, x):
        return self.neuron(pool(self.conv(x.flatten(0, 1)), 2).unflatten(0, x.shape[:2]))

    made = Step("pooled currents", forward, (source,), conv=conv, neuron=net._neuron(4))
    return made, (4, *(n // 2 for n in space))


def _product(net, dice):
    source, (channels, *space) = net.pick()
    conv = OverTime(*net._conv(channels, channels))
    made = Step(
        "product",
        lambda self, x: self.last(self.conv(x * self.gate(self.conv(x)))),
        (source,),
        conv=conv,
        gate=net._plain_neuron(dice.choice([1, 3])),
        last=net._plain_neuron(),
    )
    return made, (channels, *space)


def _attention(net, dice):
    source, (channels, *space) = net.pick(lambda shape: shape[0] % 2 == 0) or (None, (0,))
    if source is None:
        return None
    heads, width, tokens = 2, channels // 2, int(torch.tensor(space).prod())
    is_linear, scale = dice.random() < 0.5, dice.choice([0.125, 0.3])

    def split(neuron, conv, x):
        """Return ``[T, B, heads, N, d]``."""
        y = neuron(conv(x)).flatten(3)
        return y.reshape(*y.shape[:2], heads, width, tokens).transpose(-1, -2)

    def forward(self, x):
        q, k, v = (
            split(n, c, x) for n, c in ((self.nq, self.q), (self.nk, self.k), (self.nv, self.v))
        )
        y = q @ (k.transpose(-1, -2) @ v) if is_linear else (q @ k.transpose(-1, -2)) @ v
        y = (y * scale).transpose(-1, -2).reshape(*x.shape[:2], channels, *space)
        return self.last(y)

    convs = {key: OverTime(*net._conv(channels, channels, kernel=1)) for key in "qkv"}
    parts = {f"n{key}": net._plain_neuron() for key in "qkv"}
    return Step("attention", forward, (source,), last=net._plain_neuron(), **convs, **parts), (
        channels,
        *space,
    )


def _tokens(net, dice):
    source, (channels, *space) = net.pick()

    def forward(self, x):
        y = self.linear(x.flatten(3).transpose(2, 3))  # [T, B, N, C]
        y = self.neuron(y) if self.is_early else y
        y = y.transpose(2, 3).unflatten(3, tuple(space))
        return y if self.is_early else self.neuron(y)

    made = Step(
        "tokens", forward, (source,), linear=nn.Linear(channels, 4), neuron=net._plain_neuron()
    )
    made.is_early = dice.random() < 0.5
    return made, (4, *space)


def _shuffle(net, dice):
    source, (channels, *space) = net.pick(lambda shape: shape[0] % 2 == 0) or (None, (0,))
    if source is None:
        return None

    def forward(self, x):
        y = x.reshape(*x.shape[:2], 2, channels // 2, *space)
        return y.transpose(2, 3).reshape(x.shape)

    return Step("shuffle", forward, (source,)), (channels, *space)


def _turn(net, dice):
    if net.rank == 1:
        return None
    source, (channels, *space) = net.pick()
    return Step("turn", lambda self, x: x.transpose(-1, -2), (source,)), (
        channels,
        *reversed(space),
    )


def _pad(net, dice):
    source, (channels, *space) = net.pick(lambda shape: max(shape[1:]) <= 8) or (None, (0,))
    if source is None:
        return None
    before, after = dice.choice([(0, 1), (1, 0), (2, 1)])
    pads = [before, after] * net.rank
    return Step("pad", lambda self, x: F.pad(x, pads), (source,)), (
        channels,
        *(n + before + after for n in space),
    )


def _constant(net, dice):
    source, (channels, *space) = net.pick()
    shape = (4, *space) if dice.random() < 0.5 else (4, *[1] * net.rank)
    made = Step(
        "constant",
        lambda self, x: self.neuron(self.conv(x) + self.constant),
        (source,),
        conv=OverTime(*net._conv(channels, 4)),
        neuron=net._neuron(4),
    )
    made.constant = nn.Parameter(torch.randn(shape))
    return made, (4, *space)


STEPS = (
    *(_layer, _layer, _transposed, _residual, _join_levels, _join_currents, _join_space, _part),
    *(_halves, _upsample, _max_pool, _mean_pool, _pooled_currents, _product, _attention, _tokens),
    *(_shuffle, _turn, _pad, _constant, _roll),
)
