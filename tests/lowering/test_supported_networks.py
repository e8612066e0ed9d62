"""Networks as people write them: each is lowered exactly, or refused by the path of what is not."""

import warnings

import pytest
import torch
import torch.nn.utils.parametrize as parametrize
from random_networks import to_proven_integers
from torch import nn
from torch.ao.nn import qat
from torch.ao.quantization import get_default_qat_qconfig
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import lbq
from lbq import neurons
from lbq.errors import LoweringError
from lbq.time import MeanOverTime, OverTime, RepeatOverTime, merge_time, split_time

IMAGES, FRAMES, FEATURES = (3, 3, 8, 8), (2, 3, 3, 8, 8), (2, 3, 6)
cat = torch.cat


class Net(nn.Module):
    """Parts by name, and a forward that is given."""

    def __init__(self, forward, **parts):
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self._forward(self, x)


def burst(max_level=5, **options):
    return lbq.BurstLIF(max_level, **options)


def per_channel(channels, max_level=5):
    return burst(max_level, step=lbq.LearnedStep(0.5, channels=channels))


def conv(inputs, outputs, kernel=3, **options):
    return nn.Conv2d(inputs, outputs, kernel, **{"padding": kernel // 2, **options})


def over(*modules):
    return OverTime(*modules)


def stem(channels=4, timesteps=2):
    norm = nn.BatchNorm2d(channels)
    return nn.Sequential(conv(3, channels), norm, RepeatOverTime(timesteps), burst())


def restored(model):
    """The forward is stored in the object, as Accelerate leaves it after mixed precision."""
    model.forward = model.forward
    return model


def head(channels=4, classes=5):
    classifier = over(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    return nn.Sequential(classifier, MeanOverTime())


def chain(*middle, channels=4):
    """A stem, modules that map sequences, and a head."""
    return nn.Sequential(stem(), *middle, head(channels))


def layer(*modules, channels=4):
    """One layer of modules at every instant, and a neuron, between a stem and a head."""
    return chain(over(*modules), burst(), channels=channels)


def net(forward, **parts):
    """A network whose forward is given: a stem ``s``, layers ``c n`` and ``c2 n2``, a head ``h``.

    ``f`` is a convolution of the input, ``r`` repeats a current, ``l`` classifies flattened maps.
    """
    basic = {
        **{"s": stem(), "c": over(conv(4, 4), nn.BatchNorm2d(4)), "n": burst(), "h": head()},
        **{"c2": over(conv(4, 4)), "n2": burst(), "f": conv(3, 4), "r": RepeatOverTime(2)},
        "l": nn.Linear(256, 5),
    }
    return Net(forward, **{**basic, **parts})


def classify(*modules):
    """A head of one's own: at every instant, then the mean over time."""
    return nn.Sequential(stem(), over(*modules), MeanOverTime())


class WithDefault(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = layer(conv(4, 4))

    def forward(self, x, names=None):
        return self.net(x)


# --- exact

EXACT = {
    # convolutions
    "plain": lambda: layer(conv(4, 4), nn.BatchNorm2d(4)),
    "grouped": lambda: layer(conv(4, 8, groups=2), nn.BatchNorm2d(8), channels=8),
    "depthwise behind steps per channel": lambda: chain(
        over(conv(4, 8)), per_channel(8), over(conv(8, 8, groups=8)), burst(), channels=8
    ),
    "dilated": lambda: layer(conv(4, 4, padding=2, dilation=2)),
    "strided": lambda: layer(conv(4, 4, stride=2)),
    "asymmetric": lambda: layer(nn.Conv2d(4, 4, (3, 1), stride=(2, 1), padding=(1, 0))),
    "shared convolution": lambda: net(lambda s, x: s.h(s.n2(s.c(s.n(s.c(s.s(x))))))),
    "shared neuron": lambda: net(lambda s, x: s.h(s.n(s.c2(s.n(s.c(s.s(x))))))),
    "shared block": lambda: net(lambda s, x: s.h(s.n(s.c(s.n(s.c(s.s(x))))))),
    "stacked batch norms": lambda: layer(
        conv(4, 4), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)
    ),
    "two neurons in a row": lambda: chain(over(conv(4, 4)), burst(), burst()),
    "nested Sequential": lambda: chain(nn.Sequential(nn.Sequential(over(conv(4, 4)), burst()))),
    "dropout": lambda: layer(nn.Dropout2d(0.3), conv(4, 4), nn.Dropout(0.1), nn.BatchNorm2d(4)),
    # pools
    "max pool behind a neuron": lambda: layer(nn.MaxPool2d(3, 2, 1), conv(4, 4)),
    "max pool before a neuron": lambda: layer(conv(4, 4), nn.MaxPool2d(2)),
    "average pool behind a neuron": lambda: layer(nn.AvgPool2d(3, 2, 1), conv(4, 4)),
    "average, then max": lambda: layer(nn.AvgPool2d(2), nn.MaxPool2d(2), conv(4, 4)),
    "max, then average": lambda: layer(nn.MaxPool2d(2), nn.AvgPool2d(2), conv(4, 4)),
    "average pool before a neuron": lambda: layer(conv(4, 4), nn.BatchNorm2d(4), nn.AvgPool2d(2)),
    "padded average pool before a neuron": lambda: layer(conv(4, 4), nn.AvgPool2d(3, 2, 1)),
    "average pool, then batch norm": lambda: layer(conv(4, 4), nn.AvgPool2d(2), nn.BatchNorm2d(4)),
    "average pools in a row before a neuron": lambda: layer(
        conv(4, 4), nn.AvgPool2d(2), nn.AvgPool2d(2, 1)
    ),
    "average pool of the stem": lambda: nn.Sequential(
        conv(3, 4), nn.BatchNorm2d(4), nn.AvgPool2d(2), RepeatOverTime(2), burst(), head()
    ),
    "equal cells of an adaptive pool": lambda: classify(
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)
    ),
    "functional pools": lambda: net(
        lambda s, x: s.h(
            s.n(
                split_time(
                    s.c[0](F.avg_pool2d(F.max_pool2d(merge_time(y := s.s(x)), 2), 2)), like=y
                )
            )
        )
    ),
    "global pool by its function": lambda: net(
        lambda s, x: (
            s.l(F.adaptive_avg_pool2d(merge_time(s.s(x)), output_size=1).flatten(1))
            .unflatten(0, (2, x.shape[0]))
            .mean(0)
        ),
        l=nn.Linear(4, 5),
    ),
    "mean over space": lambda: net(
        lambda s, x: s.l(s.s(x).mean((3, 4))).mean(0), l=nn.Linear(4, 5)
    ),
    # sums and concatenations
    "basic residual": lambda: net(lambda s, x: s.h(s.n2(s.c2(s.n(s.c(y := s.s(x)))) + y))),
    "SEW residual": lambda: net(lambda s, x: s.h(s.n2(s.c2((y := s.s(x)) + s.n(s.c(y)))))),
    "SEW residual in place": lambda: net(in_place_residual),
    "weighted sum of bursts": lambda: net(
        lambda s, x: s.h(s.n2(s.c2(0.3 * (y := s.s(x)) + s.n(s.c(y)) / 2)))
    ),
    "two branches of currents": lambda: net(
        lambda s, x: s.h(s.n(s.c(y := s.s(x)) + s.c2(y))), c2=over(conv(4, 4, 1))
    ),
    "sum of max and average": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.p(y := s.s(x)) + s.q(y)))),
        p=over(nn.MaxPool2d(2)),
        q=over(nn.AvgPool2d(2)),
    ),
    "four concatenated branches": lambda: net(
        lambda s, x: s.h(s.n3(s.c3(cat([s.n(s.c(y := s.s(x))), s.n2(s.c2(y)), s.p(y), y], dim=2)))),
        c2=over(conv(4, 3, 1)),
        n2=per_channel(3),
        p=over(nn.MaxPool2d(3, 1, 1)),
        c3=over(conv(15, 4)),
        n3=burst(),
    ),
    "sum of concatenations": lambda: net(
        lambda s, x: s.h(s.n2(s.c2(cat([y := s.s(x), z := s.n(s.c(y))], 2) + cat([z, y], 2)))),
        c2=over(conv(8, 4)),
    ),
    # what enters, and how it is repeated
    "input skip by a convolution": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x)) + s.r(s.p(x)))), p=conv(3, 4, 1)
    ),
    "unsqueeze and repeat": lambda: net(
        lambda s, x: s.h(s.n(s.f(x).unsqueeze(0).repeat(2, 1, 1, 1, 1)))
    ),
    "unsqueeze and expand": lambda: net(
        lambda s, x: s.h(s.n(s.f(x).unsqueeze(0).expand(2, -1, -1, -1, -1)))
    ),
    "input repeated": lambda: net(
        lambda s, x: s.h(s.n(s.c(x.unsqueeze(0).repeat(2, 1, 1, 1, 1)))),
        c=over(conv(3, 4), nn.BatchNorm2d(4)),
    ),
    "input repeated and read twice": lambda: net(
        lambda s, x: s.h(s.n(s.c(y := s.r(x)) + s.c2(s.n2(s.c(y))))), c=over(conv(3, 4))
    ),
    "one current stacked": lambda: net(lambda s, x: s.h(s.n(torch.stack([s.f(x)] * 2)))),
    "one current concatenated over time": lambda: net(
        lambda s, x: s.h(s.n(cat([y := s.f(x)[None], y])))
    ),
    # neurons
    "binary": lambda: chain(over(conv(4, 4)), neurons.BinaryLIF()),
    "I-LIF": lambda: chain(over(conv(4, 4)), neurons.IntegerLIF()),
    "reset by level": lambda: chain(over(conv(4, 4)), burst(reset_mode="level", decay=0.9)),
    "no reset": lambda: chain(over(conv(4, 4)), burst(20, reset_mode="none", tau=3.0)),
    "partial reset": lambda: chain(over(conv(4, 4)), burst(reset=0.7)),
    "steps per channel": lambda: chain(over(conv(4, 4)), per_channel(4), over(conv(4, 4)), burst()),
    "a subclass that only builds": lambda: chain(over(conv(4, 4)), Preset()),
    # weights that are computed
    "weight_norm": lambda: layer(parametrizations.weight_norm(conv(4, 4))),
    "spectral_norm": lambda: layer(parametrizations.spectral_norm(conv(4, 4))),
    "pruned": lambda: layer(prune.l1_unstructured(conv(4, 4), "weight", 0.5)),
    "parametrized": lambda: layer(doubled(conv(4, 4))),
    # heads
    "flattened maps": lambda: classify(nn.Flatten(), nn.Linear(256, 5)),
    "global pool, then 1x1 convolution": lambda: classify(
        nn.AdaptiveAvgPool2d(1), conv(4, 5, 1), nn.Flatten()
    ),
    "1x1 convolution, then global pool": lambda: classify(
        conv(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "1x1 convolution and global pool in modules of their own": lambda: net(
        lambda s, x: s.p(s.f(s.s(x))).flatten(2).mean(0),
        f=over(conv(4, 5, 1)),
        p=over(nn.AdaptiveAvgPool2d(1)),
    ),
    "convolution of the whole map, batch norm behind a flatten": lambda: nn.Sequential(
        stem(),
        over(nn.Conv2d(4, 6, 8)),
        over(nn.Flatten(), nn.BatchNorm1d(6)),
        burst(),
        nn.Linear(6, 5),
        MeanOverTime(),
    ),
    "1x1 convolution, then mean over space": lambda: net(
        lambda s, x: s.f(s.s(x)).mean((-2, -1)).mean(0), f=over(conv(4, 5, 1))
    ),
    "convolution of the whole map": lambda: classify(nn.Conv2d(4, 5, 8), nn.Flatten()),
    "segmentation": lambda: classify(conv(4, 5, 1)),
    "a sequence of answers": lambda: nn.Sequential(stem(), over(nn.Flatten(), nn.Linear(256, 5))),
    "two heads, added, then the mean": lambda: net(
        lambda s, x: (s.l(y := s.s(x)) + s.m(y)).mean(0),
        l=over(nn.Flatten(), nn.Linear(256, 5)),
        m=over(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
    ),
    "two heads, the means added": lambda: net(
        lambda s, x: s.l(y := s.s(x)).mean(0) + s.m(y).mean(0),
        l=over(nn.Flatten(), nn.Linear(256, 5)),
        m=over(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
    ),
    "watched levels": lambda: watched(layer(conv(4, 4))),
    "an argument with a default": WithDefault,
    "its own forward, stored in the object": lambda: restored(layer(conv(4, 4))),
    # code that is not in modules
    "forward hook": lambda: hooked(layer(conv(4, 4)), "1.0", double),
    "forward pre-hook": lambda: hooked(layer(conv(4, 4)), "1.0", halve, before=True),
    "hook on a neuron": lambda: hooked(layer(conv(4, 4)), "2", double),
    "neuron with a forward of its own": lambda: chain(over(conv(4, 4)), Shifted()),
    "convolution with a forward of its own": lambda: layer(Standardised(4, 4, 3)),
    "forward replaced in an object": lambda: patched(layer(conv(4, 4))),
    "kept in a list and written into": lambda: net(kept_in_a_list, c3=over(conv(12, 4))),
    "isinstance of a tensor": lambda: net(is_a_tensor),
    "function that is only called clone": lambda: net(lambda s, x: s.h(s.n(s.c(clone(s.s(x)))))),
    "SyncBatchNorm": lambda: layer(conv(4, 4), nn.SyncBatchNorm(4)),
    "padding by a word": lambda: layer(conv(4, 4, padding="same")),
    "functional convolution": lambda: net(
        lambda s, x: s.h(s.n(split_time(F.conv2d(merge_time(y := s.s(x)), s.c[0].weight), like=y)))
    ),
    "learned scalar": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x)) * s.g)), g=nn.Parameter(torch.tensor([0.7]))
    ),
    "reshape": lambda: net(
        lambda s, x: s.h(s.n(s.c[0](s.s(x).reshape(-1, 4, 8, 8)).view(2, -1, 4, 8, 8)))
    ),
    "squeeze": lambda: net(
        lambda s, x: s.l(s.p(s.s(x)).squeeze(-1).squeeze(-1)).mean(0),
        p=over(nn.AdaptiveAvgPool2d(1)),
        l=nn.Linear(4, 5),
    ),
    "one scale per channel": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x)) * s.g)), g=nn.Parameter(torch.randn(4, 1, 1))
    ),
    "scaled bursts of channels": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x) / s.g))), g=nn.Parameter(torch.rand(4, 1, 1) + 0.5)
    ),
    "numbers behind a synapse": lambda: net(lambda s, x: s.h(s.n(0.2 - s.c(s.s(x)) * -1.5 - 0.1))),
    "product with a parameter": lambda: net(
        lambda s, x: (s.s(x).mean((3, 4)) @ s.w + s.v).mean(0),
        w=nn.Parameter(torch.randn(4, 5)),
        v=nn.Parameter(torch.randn(5)),
    ),
    "features with the channels last": lambda: net(
        lambda s, x: s.l(s.s(x).permute(0, 1, 3, 4, 2).flatten(2)).mean(0)
    ),
    "transposed twice": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x).transpose(2, 4).movedim(-1, 2).mT)))
    ),
    "mean over time and space": lambda: net(
        lambda s, x: s.f(s.s(x)).mean((0, 3, 4)), f=over(conv(4, 5, 1))
    ),
    "one timestep, squeezed": lambda: net(
        lambda s, x: s.l(s.s(x).squeeze(0).flatten(1)), s=stem(timesteps=1)
    ),
    "batch before time": lambda: net(
        lambda s, x: s.l(s.s(x).transpose(0, 1).flatten(2).transpose(0, 1)).mean(0)
    ),
    "repetition with a forward of its own": lambda: nn.Sequential(
        conv(3, 4), Repeated(2), burst(), head()
    ),
    "scaled sum of currents": lambda: net(
        lambda s, x: s.h(s.n2(0.3 * (s.c(y := s.s(x)) + s.c2(y)) * s.g)),
        g=nn.Parameter(torch.rand(4, 1, 1) + 0.5),
    ),
    "mean of a sum of currents": lambda: net(
        lambda s, x: s.l(
            s.n((s.c(y := s.s(x)) + s.c2(y)).mean((3, 4), keepdim=True)).flatten(2)
        ).mean(0),
        l=nn.Linear(4, 5),
    ),
    "scaled currents": lambda: net(lambda s, x: s.h(s.n(0.5 * s.c(s.s(x))))),
    "hook on a container": lambda: hooked(
        layer(conv(4, 4)), "1", lambda module, args, out: 2 * out
    ),
}
"""Exact in float64, and with the same integers in every backend."""

MOVED = {
    "transposed convolution": lambda: layer(nn.ConvTranspose2d(4, 4, 2, stride=2)),
    "upsampling": lambda: layer(nn.Upsample(scale_factor=2), conv(4, 4)),
    "pixel shuffle": lambda: layer(nn.PixelShuffle(2), conv(1, 4)),
    "channel shuffle": lambda: layer(nn.ChannelShuffle(2), conv(4, 4)),
    "padding module": lambda: layer(nn.ZeroPad2d(1), conv(4, 4)),
    "gated bursts": lambda: net(lambda s, x: s.h(s.n(s.c((y := s.s(x)) * s.n(s.c(y)))))),
    "adaptive max pool": lambda: classify(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(4, 5)),
    "adaptive max pool by its function": lambda: net(
        lambda s, x: s.h(
            s.n(split_time(s.c[0](F.adaptive_max_pool2d(merge_time(y := s.s(x)), 2)), like=y))
        )
    ),
    "concatenation read in groups": lambda: net(
        lambda s, x: s.h(s.n2(s.c2(cat([y := s.s(x), s.n(s.c(y))], 2)))),
        c2=over(conv(8, 4, groups=2)),
    ),
    "concatenation read by a neuron": lambda: net(
        lambda s, x: s.h(s.n(cat([s.c(y := s.s(x)), s.c(y)], 2))), h=head(8)
    ),
    "transpose": lambda: net(lambda s, x: s.h(s.n(s.c(s.s(x).transpose(3, 4))))),
    "steps per flattened feature": lambda: net(
        lambda s, x: s.l(s.n(s.c(s.s(x)).flatten(2))).mean(0), n=per_channel(256)
    ),
    "flattened maps as the answer": lambda: net(lambda s, x: s.c(s.s(x)).flatten(2).mean(0)),
    "residual behind global pooling": lambda: net(
        lambda s, x: s.l2(s.n(s.l(f := s.p(s.s(x))) + f)).mean(0),
        p=over(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        l=nn.Linear(4, 4),
        l2=nn.Linear(4, 5),
    ),
    "3x3 convolution, then global pool": lambda: classify(
        conv(4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ),
    "half of the channels": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x).unflatten(2, (2, 2))[:, :, 1]))), c=over(conv(2, 4))
    ),
    "every second channel": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x).unflatten(2, (2, 2)).select(3, 1)))), c=over(conv(2, 4))
    ),
    "split of concatenated steps per channel": lambda: net(
        lambda s, x: s.h(s.n2(s.c2(cat([y := s.s(x), s.n(s.c(y))], 2).split((3, 5), 2)[1]))),
        n=per_channel(4),
        c2=over(conv(5, 4)),
    ),
    "constant per position": lambda: net(
        lambda s, x: s.h(s.n(s.c(s.s(x)) + s.g)), g=nn.Parameter(torch.randn(4, 8, 1))
    ),
    "sum over space": lambda: net(
        lambda s, x: s.l(s.s(x).sum((3, 4)) / 64).mean(0), l=nn.Linear(4, 5)
    ),
    "difference of bursts": lambda: net(lambda s, x: s.h(s.n2(s.c2((y := s.s(x)) - s.n(s.c(y)))))),
    "sum of tokens and maps": lambda: net(
        lambda s, x: s.h(s.n((y := s.s(x)) + s.t(y.flatten(3).mT).mT.unflatten(3, (8, 8)))),
        t=nn.Linear(4, 4),
    ),
}
"""Exact with operators that move values or multiply levels."""

REAL = {
    "ternary": (lambda: chain(over(conv(4, 4)), neurons.TernaryLIF(step=0.3)), "2.*negative"),
    "MLF": (lambda: chain(over(conv(4, 4)), neurons.MultiLevelLIF()), "2.*its own membrane"),
    "LM-HT": (lambda: chain(over(conv(4, 4)), neurons.LMHT(2)), "2.*mixes timesteps"),
    "MS residual": (
        lambda: net(
            lambda s, x: s.h2(s.n(y := s.f(x)) + s.g(y)),
            f=nn.Sequential(conv(3, 4), RepeatOverTime(2)),
            g=over(conv(4, 4)),
            h2=nn.Sequential(over(nn.Flatten(), nn.Linear(256, 5)), MeanOverTime()),
        ),
        "real-valued currents",
    ),
    "batch norm before a convolution": (
        lambda: layer(nn.BatchNorm2d(4), conv(4, 4)),
        r"1\.1.*real-valued currents",
    ),
    "two convolutions in a row": (
        lambda: layer(conv(4, 4), conv(4, 4)),
        r"1\.1.*real-valued currents",
    ),
    "a scaled answer": (lambda: net(lambda s, x: s.h(s.n(s.c(s.s(x)))) * 2), "scales"),
    "mean over time, then a linear layer": (
        lambda: nn.Sequential(*chain(over(conv(4, 4)), burst()), nn.Linear(5, 2)),
        "readout averages .* over time",
    ),
    "an input skip to the answer": (
        lambda: net(lambda s, x: s.h(s.n(s.c(s.s(x)))) + s.l(x.flatten(1)), l=nn.Linear(192, 5)),
        "readout averages .* over time",
    ),
    "hook on the network": (lambda: hooked(layer(conv(4, 4)), "", double), "scales"),
    "forward of the network replaced": (lambda: patched_itself(layer(conv(4, 4))), "scales"),
    "identity written into": (lambda: net(kept_identity), "real-valued currents"),
    "written into behind dropout": (
        lambda: net(written_behind_dropout, d=nn.Dropout(0.1)),
        "real-valued currents",
    ),
    "isinstance of a tensor at the end": (
        lambda: net(is_a_tensor_behind_the_last_neuron),
        "scales",
    ),
    "max pool of a sum": (
        lambda: net(
            lambda s, x: s.h(s.n(s.c(s.p((y := s.s(x)) + s.n(s.c(y)))))), p=over(nn.MaxPool2d(2))
        ),
        "real-valued currents",
    ),
    "concatenation read by a batch norm": (
        lambda: net(
            lambda s, x: s.h(s.n(s.c(s.b(cat([y := s.s(x), y], 2))))),
            b=over(nn.BatchNorm2d(8)),
            c=over(conv(8, 4)),
        ),
        "real-valued currents",
    ),
    "batch norm behind a flatten": (
        lambda: net(
            lambda s, x: s.l(s.n(s.b(s.c(s.s(x))))).mean(0),
            b=over(nn.Flatten(), nn.BatchNorm1d(256)),
        ),
        "real-valued currents",
    ),
}
"""Exact in float64; why their integers are refused."""

REAL_FRAMES = {
    "identity skip of the input": (
        lambda: net(lambda s, x: s.h(s.n(s.f(x) + x)), f=over(conv(3, 3)), h=head(3)),
        "real-valued|input",
    ),
    "pool of the input": (
        lambda: nn.Sequential(over(nn.AvgPool2d(2), conv(3, 4)), burst(), head()),
        "input",
    ),
}

EXACT_FRAMES = {
    "frames": lambda: nn.Sequential(over(conv(3, 4), nn.BatchNorm2d(4)), burst(), head()),
    "input skip by concatenation": lambda: net(
        lambda s, x: s.h(s.n2(s.c2(cat([s.n(s.f(x)), x], 2)))),
        f=over(conv(3, 4)),
        c2=over(conv(7, 4)),
    ),
    "time folded by hand": lambda: net(
        lambda s, x: s.h(s.n(s.f(x.flatten(0, 1)).unflatten(0, x.shape[:2])))
    ),
}

EXACT_FEATURES = {
    "MLP on frames": lambda: net(
        lambda s, x: s.m(s.n(s.l(x))).mean(0),
        l=nn.Linear(6, 8),
        n=per_channel(8),
        m=nn.Linear(8, 5),
    ),
    "MLP with batch norm": lambda: nn.Sequential(
        over(nn.Linear(6, 8), nn.BatchNorm1d(8)), burst(), nn.Linear(8, 5), MeanOverTime()
    ),
}


def in_place_residual(s, x):
    y = s.s(x)
    out = s.n(s.c(y))
    out += y
    return s.h(s.n2(s.c2(out) + out))


class Preset(lbq.BurstLIF):
    def __init__(self):
        super().__init__(max_level=3, step=0.3)

    def extra_repr(self):
        return "preset"


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def doubled(module):
    parametrize.register_parametrization(module, "weight", Doubled())
    return module


def hooked(model, path, hook, *, before=False):
    module = model.get_submodule(path)
    (module.register_forward_pre_hook if before else module.register_forward_hook)(hook)
    return model


def watched(model):
    model.get_submodule("2").emit.register_forward_hook(lambda module, args, out: None)
    return model


def seeded(build):
    """Build a network with every number drawn, in eval mode."""
    torch.manual_seed(0)
    model = build()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            if module.track_running_stats:
                nn.init.normal_(module.running_mean, 0, 0.3)
                nn.init.uniform_(module.running_var, 0.3, 1.3)
            if module.affine:
                nn.init.normal_(module.weight, 0.6, 0.7)
                nn.init.normal_(module.bias, 0.3, 0.3)
        if isinstance(module, lbq.LearnedStep):
            nn.init.normal_(module.raw_step, -0.6, 0.4)
    return model.eval()


def levels_of(model, inputs):
    """Return all levels in the order in which they were emitted, by whom, and the answer."""
    seen, paths = [], set()

    def watch(path, t, level):
        seen.append(level)
        paths.add(path)

    if isinstance(model, lbq.LoweredNetwork):
        return seen, paths, lbq.run_network(model, inputs, watch=watch)
    with torch.no_grad(), lbq.watch_levels(model, watch):
        return seen, paths, model(inputs)


def in_float64(build, shape):
    model = seeded(build).double()
    inputs = torch.randn(shape).double()
    lowered = lbq.lower(model, inputs)
    expected, paths, answer = levels_of(model, inputs)
    found, lowered_paths, lowered_answer = levels_of(lowered, inputs)
    assert paths <= lowered_paths  # a neuron that is called twice has two
    assert len(found) == len(expected)
    for mine, level in zip(found, expected, strict=True):
        assert torch.equal(mine.flatten(), level.flatten())
    assert any(int(level.count_nonzero()) for level in found)
    torch.testing.assert_close(lowered_answer, answer, rtol=1e-9, atol=1e-9)


def in_integers(build, shape):
    """Lower in float32, turn into integers; return them, bytes, and what the model answers."""
    model = seeded(build)
    channels = shape[-3] if len(shape) > 3 else shape[-1]
    pixels = lbq.Pixels(mean=[0.4] * channels, std=[0.25] * channels)
    raw = torch.randint(0, 256, shape, dtype=torch.uint8)
    inputs = (raw / 255 - 0.4) / 0.25
    integers = to_proven_integers(lbq.lower(model, inputs), bits=16, pixels=pixels)
    with torch.no_grad():
        return integers, raw, model(inputs)


def shapes(**kinds):
    return [
        pytest.param(entry, globals()[shape], id=name)
        for shape, group in kinds.items()
        for name, entry in group.items()
    ]


GROUPS = {"IMAGES": EXACT, "FRAMES": EXACT_FRAMES, "FEATURES": EXACT_FEATURES}


@pytest.mark.parametrize(("build", "shape"), shapes(**GROUPS))
def test_a_kind_that_is_lowered_is_exact_in_float64(build, shape):
    in_float64(build, shape)


@pytest.mark.parametrize(("build", "shape"), shapes(**GROUPS))
def test_its_integers_are_the_same_in_every_backend_and_close_to_it(build, shape):
    integers, raw, answer = in_integers(build, shape)
    dense = lbq.run_network(integers, raw, backend="dense")
    for backend in ("planes", "unary", "native"):
        assert torch.equal(lbq.run_network(integers, raw, backend=backend), dense), backend
    error = (dense * integers.logit_scale - answer).abs().mean()
    assert error < 0.1 * answer.abs().mean()


@pytest.mark.parametrize("name", MOVED)
def test_values_that_are_moved_are_exact_in_float64_and_the_same_in_every_backend(name):
    in_float64(MOVED[name], IMAGES)
    integers, raw, answer = in_integers(MOVED[name], IMAGES)
    dense = lbq.run_network(integers, raw, backend="dense")
    for backend in ("planes", "unary"):
        assert torch.equal(lbq.run_network(integers, raw, backend=backend), dense), backend
    error = (dense * integers.logit_scale - answer).abs().mean()
    assert error < 0.1 * answer.abs().mean()


@pytest.mark.parametrize(("kind", "shape"), shapes(IMAGES=REAL, FRAMES=REAL_FRAMES))
def test_a_kind_without_integers_is_exact_and_says_why_it_has_none(kind, shape):
    build, why = kind
    in_float64(build, shape)
    with pytest.raises(LoweringError, match=why):
        in_integers(build, shape)


# --- refused


class Shifted(lbq.BurstLIF):
    def forward(self, currents):
        return super().forward(currents - 0.3)


class Louder(lbq.BurstLIF):
    def scan(self, currents, carry):
        bursts, levels, carry = super().scan(currents, carry)
        return 2 * bursts, levels, carry


class Wider(lbq.LearnedStep):
    def for_currents(self, currents, *, max_level):
        return 2 * super().for_currents(currents, max_level=max_level)


class Standardised(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


class Repeated(RepeatOverTime):
    def forward(self, current):
        return 2 * super().forward(current)


@torch.fx.wrap
def clone(x):
    return 3 * x


def kept_identity(s, x):
    y = s.c(z := s.s(x))
    identity = y
    y += s.c2(z)
    return s.h(s.n(s.c2(y) + identity))


def written_behind_dropout(s, x):
    y = s.c(z := s.s(x))
    dropped = s.d(y)
    return s.h(s.n(s.c2(dropped.add_(s.c2(z))) + y))


def kept_in_a_list(s, x):
    kept = [out := s.s(x)]
    for _ in range(2):
        out += s.n(s.c(out))
        kept.append(out)
    return s.h(s.n2(s.c3(cat(kept, 2))))


def is_a_tensor(s, x):
    y = s.s(x)
    if isinstance(y, torch.Tensor):
        y = 2 * y
    return s.h(s.n(s.c(y)))


def is_a_tensor_behind_the_last_neuron(s, x):
    y = s.h(s.n(s.c(s.s(x))))
    return 2 * y if isinstance(y, torch.Tensor) else y


def by_length(s, x):
    return s.h(s.n(torch.stack([s.f(x)] * len(x))))


def by_value(s, x):
    return s.h(s.n(s.c(s.s(x)))) if x.sum() > 0 else s.h(s.s(x))


def by_instant(s, x):
    y = s.s(x)
    return s.h(s.n(torch.stack([s.c[0](y[t]) for t in range(2)])))


def patched(model):
    module = model.get_submodule("1.0")
    module.forward = lambda x: 2 * nn.Conv2d.forward(module, x)
    return model


def patched_itself(model):
    model.forward = lambda x: 2 * nn.Sequential.forward(model, x)
    return model


def patched_with_another():
    model = layer(conv(4, 4))
    model.forward = layer(conv(4, 4)).forward
    return model


def patched_step():
    model = chain(over(conv(4, 4)), burst(step=lbq.LearnedStep()))
    step = model.get_submodule("2").step
    step.for_currents = lambda currents, *, max_level: 2 * step()
    return model


def quantised():
    return layer(qat.Conv2d(4, 4, 3, padding=1, qconfig=get_default_qat_qconfig("fbgemm")))


def double(module, args, out):
    return 2 * out


def halve(module, args):
    return (0.5 * args[0],)


REFUSED = {
    "loop over instants": (lambda: net(by_instant), "select in the network itself.*OverTime"),
    "reflected padding": (
        lambda: layer(conv(4, 4, padding_mode="reflect")),
        r"Conv2d in 1\.0.*zeros",
    ),
    "no time at all": (
        lambda: nn.Sequential(conv(3, 4), burst(), nn.Flatten(), nn.Linear(256, 5)),
        r"BurstLIF in 1 cannot be lowered.*RepeatOverTime",
    ),
    "attention": (
        lambda: net(lambda s, x: s.l((y := s.s(x).flatten(2)) @ y.transpose(1, 2)), l=burst()),
        "along the batch or along time",
    ),
    # what cannot be known or compared
    "hook on what a neuron receives": (
        lambda: hooked(layer(conv(4, 4)), "2.receive", double),
        r"2\.receive .*hook double",
    ),
    "neuron with a scan of its own": (
        lambda: chain(over(conv(4, 4)), Louder()),
        "2 has a Louder, which overrides scan",
    ),
    "step with for_currents of its own": (
        lambda: chain(over(conv(4, 4)), burst(step=Wider())),
        "2 has a Wider, which overrides for_currents",
    ),
    "quantised convolution": (quantised, r"buffer 1\.0\.weight_fake_quant.*torch\.ao\.nn\.qat"),
    "forward of another network": (patched_with_another, "cannot run the example"),
    "step replaced in an object": (
        patched_step,
        "2 has a LearnedStep, which overrides for_currents",
    ),
    # what cannot be exported
    "len of a tensor": (lambda: net(by_length), "that reach n differ.*size of the batch"),
    "decision by values": (
        lambda: net(by_value),
        "in the network itself.*depends on the values of tensors",
    ),
    "compiled": (lambda: torch.compile(layer(conv(4, 4))), "model._orig_mod"),
    "wrapped for devices": (lambda: nn.DataParallel(layer(conv(4, 4))), r"model\.module"),
    # layers that a lowered network has not
    "LayerNorm": (lambda: layer(conv(4, 4), nn.LayerNorm([4, 8, 8])), r"LayerNorm in 1\.1"),
    "GroupNorm": (lambda: layer(conv(4, 4), nn.GroupNorm(2, 4)), r"GroupNorm in 1\.1"),
    "batch norm without statistics": (
        lambda: layer(conv(4, 4), nn.BatchNorm2d(4, track_running_stats=False)),
        r"1\.1 has no running statistics",
    ),
    "GELU": (lambda: layer(conv(4, 4), nn.GELU(), conv(4, 4)), r"GELU in 1\.1"),
    "ReLU": (lambda: layer(conv(4, 4), nn.ReLU(), conv(4, 4)), r"ReLU in 1\.1"),
    "MultiheadAttention": (
        lambda: net(
            lambda s, x: s.l(s.a(y := s.s(x).flatten(2), y, y)[0]).mean(0),
            a=nn.MultiheadAttention(256, 2),
        ),
        "MultiheadAttention in a",
    ),
    "LSTM": (
        lambda: net(
            lambda s, x: s.l(s.a(s.s(x).flatten(2))[0]).mean(0),
            a=nn.LSTM(256, 8),
            l=nn.Linear(8, 5),
        ),
        "LSTM in a",
    ),
    "squeeze and excitation": (
        lambda: net(
            lambda s, x: s.h(s.n(s.c((y := s.s(x)) * torch.sigmoid(y.mean((3, 4), keepdim=True)))))
        ),
        "sigmoid in the network itself",
    ),
    # pools
    "unequal cells": (
        lambda: classify(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 5)),
        r"1\.0.*8x8 is cut into 3x3 cells of unequal size",
    ),
    "pool that rounds up": (
        lambda: layer(nn.MaxPool2d(3, 2, ceil_mode=True), conv(4, 4)),
        r"1\.0.*rounds its size up",
    ),
    "pool that does not count padding": (
        lambda: layer(nn.AvgPool2d(3, 2, 1, count_include_pad=False), conv(4, 4)),
        r"1\.0.*divisor differs",
    ),
    # shapes
    # time
    "channels repeated": (
        lambda: net(lambda s, x: s.h(s.n(s.r(s.f(x).repeat(1, 2, 1, 1)))), f=conv(3, 2)),
        "repeat in the network itself.*RepeatOverTime",
    ),
    "different tensors stacked": (
        lambda: net(lambda s, x: s.h(s.n(torch.stack([s.f(x), s.f(2 * x)])))),
        "stack in the network itself.*RepeatOverTime",
    ),
    "two numbers of timesteps": (
        lambda: net(lambda s, x: s.h(s.s(x)) + s.h(s.r(s.f(x))), r=RepeatOverTime(3)),
        "r cannot be lowered.*repeats 3 times in a network of 2",
    ),
    "levels averaged over time": (
        lambda: net(lambda s, x: s.l(s.s(x).flatten(2).mean(0))),
        "mean in the network itself.*average behind the classifier",
    ),
    "last instant": (
        lambda: net(lambda s, x: s.l(s.s(x).flatten(2))[-1]),
        "select in the network itself.*average over time",
    ),
    "sum over time": (
        lambda: net(lambda s, x: s.l(s.s(x).flatten(2)).sum(0)),
        "sum in the network itself",
    ),
}

REFUSED_INPUTS = {
    "tokens over time": (
        lambda: net(
            lambda s, x: s.m(s.n(s.l(x))).mean((0, 2)), l=nn.Linear(6, 8), m=nn.Linear(8, 5)
        ),
        (2, 3, 5, 6),
        "BurstLIF in n .*have no time.*time first",
    ),
    "signals over time": (
        lambda: net(
            lambda s, x: s.m(s.n(s.f(x)).flatten(2)).mean(0),
            f=over(nn.Conv1d(3, 4, 3)),
            m=nn.Linear(12, 5),
        ),
        (2, 3, 3, 5),
        r"Conv1d in f\.0 .*pass batch_axis=1",
    ),
    "convolution over time": (
        lambda: net(lambda s, x: s.n(s.f(x.transpose(0, 1))), f=nn.Conv3d(3, 4, 3, padding=1)),
        (3, 3, 3, 8, 8),
        "Conv3d in f.*OverTime",
    ),
    "one sample without a batch": (
        lambda: net(lambda s, x: s.l(x), l=nn.Linear(6, 5)),
        (6,),
        r"the example has shape \[6\] .* pass a batch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_that_is_not_lowered_is_refused_by_path(name):
    build, why = REFUSED[name]
    with pytest.raises(LoweringError, match=why):
        lbq.lower(seeded(build), torch.randn(IMAGES))


@pytest.mark.parametrize("name", REFUSED_INPUTS)
def test_an_input_that_is_not_lowered_is_refused_with_its_shape(name):
    build, shape, why = REFUSED_INPUTS[name]
    with pytest.raises(LoweringError, match=why):
        lbq.lower(seeded(build), torch.randn(shape))


def test_a_global_hook_is_refused_by_its_name():
    model = seeded(EXACT["plain"])
    handle = nn.modules.module.register_module_forward_hook(double)
    try:
        with pytest.raises(LoweringError, match="hook double"):
            lbq.lower(model, torch.randn(IMAGES))
    finally:
        handle.remove()


def test_older_ways_to_compute_weights_are_exact():
    for norm in (nn.utils.weight_norm, nn.utils.spectral_norm):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model = seeded(lambda norm=norm: layer(norm(conv(4, 4))))
        images = torch.randn(IMAGES)
        with torch.no_grad():
            expected = model(images)
            torch.testing.assert_close(lbq.lower(model, images)(images), expected)
            torch.testing.assert_close(model(images), expected, rtol=0, atol=0)
