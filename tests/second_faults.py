"""A second attack on the audit: whole networks as users write them, each with a fault or clean.

They were written after the audit was done, by someone who read its operators and looked for what
they leave out. ``FAULTS`` has the key of the finding that must fail and the module it must name;
``CLEAN`` the axis of the samples; ``UNKNOWN`` computes what the audit cannot see.
"""

import ctypes
import pickle
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import lbq

T = 5


class Heaviside(torch.autograd.Function):
    """Spikes with the gradient of a fast sigmoid."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v >= 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + 10 * v.abs()) ** 2


spike = Heaviside.apply


class LIF(nn.Module):
    """A leaky neuron over ``[T, B, ...]``, written by hand."""

    def __init__(self, decay=0.7, threshold=0.5):
        super().__init__()
        self.decay, self.threshold = decay, threshold

    def forward(self, currents):
        v, spikes = torch.zeros_like(currents[0]), []
        for current in currents:
            v = self.decay * v + current
            s = spike(v - self.threshold)
            v = v - s * self.threshold
            spikes.append(s)
        return torch.stack(spikes)


class Events(nn.Module):
    """Three layers of spikes on ``[T, B, 6]``; subclasses change ``middle`` or ``out``."""

    def __init__(self):
        super().__init__()
        self.enter, self.lif1 = nn.Linear(6, 9), LIF()
        self.hidden, self.lif2 = nn.Linear(9, 9), LIF()
        self.leave = nn.Linear(9, 4)
        self.setup()

    def setup(self):
        pass

    def spikes(self, s):
        return s

    def middle(self, z):
        return z

    def out(self, y):
        return y.mean(0)

    def forward(self, x):
        s = self.spikes(self.lif1(self.enter(x)))
        return self.out(self.leave(self.lif2(self.middle(self.hidden(s)))))


def recordings(count=7):
    torch.manual_seed(3)
    return 2 * torch.randn(T, count, 6)


def pictures(count=6, side=8):
    torch.manual_seed(4)
    return torch.randn(count, 3, side, side)


# products


class LowRank(Events):
    """A matrix as two thin ones, without a neuron between them."""

    def setup(self):
        self.u, self.v = nn.Parameter(torch.randn(9, 2)), nn.Parameter(torch.randn(2, 9))

    def spikes(self, s):
        return F.linear(F.linear(s, self.v), self.u)


class Rotary(Events):
    """Turns pairs of currents by an angle for every position."""

    def setup(self):
        self.register_buffer("angle", torch.arange(T).view(T, 1, 1) * torch.ones(1, 1, 4))

    def middle(self, z):
        a, b, rest = z[..., 0:8:2], z[..., 1:8:2], z[..., 8:]
        c, s = self.angle.cos(), self.angle.sin()
        return torch.cat([a * c - b * s, a * s + b * c, rest], -1)


class Dictionary(Events):
    """Multiplies currents by a matrix, as a sum of products of every pair."""

    def setup(self):
        self.w = nn.Parameter(torch.randn(9, 9))

    def middle(self, z):
        return (z.unsqueeze(-1) * self.w).sum(-2)


class Logarithms(Events):
    """A product as the exponential of a sum of logarithms."""

    def middle(self, z):
        return (z.abs().add(1).log() + z.abs().add(2).log()).exp()


class FastWeights(Events):
    """Weights that grow with what was seen."""

    def middle(self, z):
        fast = torch.zeros(z.shape[1], 9, 9).to(z)
        rows = []
        for current in z:
            rows.append(current + (fast @ current.unsqueeze(-1)).squeeze(-1))
            fast = 0.9 * fast + 0.1 * torch.einsum("bi,bj->bij", current, current)
        return torch.stack(rows)


class TestTimeGradient(Events):
    """A step down the gradient of an energy, inside the forward pass."""

    def middle(self, z):
        with torch.enable_grad():
            free = z.detach().requires_grad_()
            energy = (self.hidden(free) ** 2).sum()
            (grad,) = torch.autograd.grad(energy, free)
        return z - 0.1 * grad


class Scattered(Events):
    """Products of neighbours by a reduction."""

    def middle(self, z):
        index = (torch.arange(9) // 3).expand_as(z)
        some = torch.ones(*z.shape[:-1], 3).to(z).scatter_reduce(-1, index, z, "prod")
        return some.repeat_interleave(3, -1)


class ScatteredInPlace(Events):
    """``scatter_`` that multiplies."""

    def middle(self, z):
        index = torch.arange(9).expand_as(z)
        return z.clone().scatter_(-1, index, z.roll(1, -1), reduce="multiply")


class IndexReduced(Events):
    """``index_reduce`` that multiplies."""

    def middle(self, z):
        return z.index_reduce(-1, torch.arange(9).flip(0), z, "prod")


class Conditional(Events):
    """A batch norm with weights that come from the currents."""

    def setup(self):
        self.register_buffer("mean", torch.zeros(9))
        self.register_buffer("var", torch.ones(9))

    def middle(self, z):
        rows = z.flatten(0, 1)
        gain = z[0, 0]
        return F.batch_norm(rows, self.mean, self.var, gain).view_as(z)


class OwnSlope(Events):
    """A PReLU with a slope that comes from the currents."""

    def middle(self, z):
        return F.prelu(z.flatten(0, 1), z[0, 0].abs()).view_as(z)


class Leaky(Events):
    """A leaky ReLU: a product with a real number that no weight can take in."""

    def middle(self, z):
        return F.leaky_relu(z, 0.3)


class FixedPoint(Events):
    """Currents of twelve bits into the next layer."""

    def forward(self, x):
        z = self.hidden(self.lif1(self.enter(x)))
        return self.leave((z * 1024).round() / 1024).mean(0)


class Foreach(Events):
    """A product over lists of tensors, in place."""

    def middle(self, z):
        z = z.clone()
        torch._foreach_mul_([z], [z.clone()])
        return z


class Excite(nn.Module):
    """A convolutional network with a gate of squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.lif = LIF()
        self.squeeze = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 6), nn.Sigmoid())
        self.head = nn.Linear(6, 4)

    def forward(self, images):
        s = self.lif(self.stem(images).unsqueeze(0).repeat(T, 1, 1, 1, 1))
        gate = self.squeeze(s.mean((0, 3, 4)))
        return self.head((s * gate[None, :, :, None, None]).mean((3, 4))).mean(0)


class MembraneShortcut(nn.Module):
    """A residual block whose shortcut carries membranes into a convolution."""

    def __init__(self):
        super().__init__()
        self.stem, self.lif = nn.Conv2d(3, 6, 3, padding=1), LIF()
        self.one, self.two = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.head = nn.Linear(6, 4)

    def over_time(self, layer, x):
        return layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def forward(self, images):
        currents = self.stem(images).expand(T, -1, -1, -1, -1)
        z = currents + self.over_time(self.one, self.lif(currents))
        return self.head(self.lif(self.over_time(self.two, z)).mean((3, 4))).mean(0)


class Unfolded(nn.Module):
    """A convolution of real numbers by hand."""

    def __init__(self):
        super().__init__()
        self.stem, self.lif = nn.Conv2d(3, 6, 3, padding=1), LIF()
        self.kernel = nn.Parameter(torch.randn(6, 54) / 7)
        self.head = nn.Linear(6, 4)

    def forward(self, images):
        z = self.stem(images)
        patches = F.unfold(z.relu(), 3, padding=1)
        z = (self.kernel @ patches).view_as(z)
        return self.head(self.lif(z.expand(T, -1, -1, -1, -1)).mean((0, 3, 4)))


# time


class Backwards(nn.Module):
    """Reads a recording forwards and backwards with the same layers; the answer has no time."""

    def __init__(self):
        super().__init__()
        self.enter, self.back, self.head = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 4)

    def run(self, frames):
        v, total = 0.0, 0.0
        for frame in frames:
            v = 0.8 * v + self.enter(frame)
            s = spike(v - 0.5)
            v = v * (1 - s)
            total = total + self.head(spike(self.back(s)))
        return total

    def forward(self, x):
        return self.run(x) + self.run(x.flip(0))


class NoModules(nn.Module):
    """Functions only, with the loudness of the whole recording taken off."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(9, 6)), nn.Parameter(torch.randn(4, 9))

    def forward(self, x):
        v, y = 0.0, 0.0
        for frame in x - x.mean(0):
            v = 0.8 * v + F.linear(frame, self.w)
            y = y + F.linear(spike(v - 0.5), self.u)
            v = v - 0.5 * spike(v - 0.5)
        return y


class Peek(Events):
    """Takes a tenth of the next timestep."""

    def middle(self, z):
        return torch.stack([z[t] + 0.1 * z[min(t + 1, T - 1)] for t in range(T)])


class NormalisedBatchFirst(nn.Module):
    """``[B, T, 6]``, normalised over time before anything else."""

    def __init__(self):
        super().__init__()
        self.enter, self.lif, self.head = nn.Linear(6, 9), LIF(), nn.Linear(9, 4)

    def forward(self, x):
        x = x - x.mean(1, keepdim=True)
        return self.head(self.lif(self.enter(x.transpose(0, 1)))).mean(0)


class Threshold(Events):
    """A threshold from the quantile of all timesteps."""

    def middle(self, z):
        return z - z.quantile(0.9, dim=0)


class Filled(Events):
    """Fills silent timesteps with the next loud one."""

    def spikes(self, s):
        filled = [s[-1]]
        for frame in s.flip(0)[1:]:
            filled.append(torch.where(frame.sum(-1, keepdim=True) > 0, frame, filled[-1]))
        return torch.stack(filled[::-1])


# samples


class Unsorted(Events):
    """Sorts the samples by loudness and forgets to sort back."""

    def out(self, y):
        y = y.mean(0)
        return y[y.abs().sum(1).argsort()]


class Mixed(Events):
    """Mixup left on in eval mode."""

    def forward(self, x):
        return super().forward(0.9 * x + 0.1 * x.flip(1))


class Placed(Events):
    """A number for every place in the batch."""

    def middle(self, z):
        return z + 0.05 * torch.arange(z.shape[1]).to(z)[:, None]


class NoStatistics(Events):
    """A batch norm that keeps no statistics."""

    def setup(self):
        self.bn = nn.BatchNorm1d(9, track_running_stats=False)

    def middle(self, z):
        return self.bn(z.flatten(0, 1)).view_as(z)


class Rates(NamedTuple):
    """Answers, and how busy the network was."""

    answers: torch.Tensor
    rank: torch.Tensor


class Ranked(Events):
    """A second output that ranks samples."""

    def out(self, y):
        y = y.mean(0)
        return Rates(y, y.amax(1).argsort().argsort())


# state


class Cached(Events):
    """Remembers the answer for every shape."""

    def setup(self):
        self.cache = {}

    def out(self, y):
        return self.cache.setdefault(tuple(y.shape), y.mean(0))


class LoudestEver(Events):
    """Divides by the loudest frame of all calls: the same samples change nothing."""

    def setup(self):
        self.register_buffer("loudest", torch.zeros(()))

    def forward(self, x):
        self.loudest.copy_(torch.maximum(self.loudest, x.abs().max(1).values.max()))
        return super().forward(4 * x / self.loudest)


class KeepsSpikes(Events):
    """Writes what it saw into a weight."""

    def spikes(self, s):
        self.hidden.weight.data += 0.01 * s.mean((0, 1))
        return s


class OfTheClass(Events):
    """Counts calls on the class."""

    calls = 0

    def spikes(self, s):
        type(self).calls += 1
        return s * (1.0 + (type(self).calls % 3))


def _list_of(s, seen=[]):  # noqa: B006 -- the fault
    seen.append(s.mean())
    return s + len(seen) % 5


class DefaultArgument(Events):
    """Keeps a list in a default argument."""

    def spikes(self, s):
        return _list_of(s)


class LastBatch(Events):
    """Adds what it saw of the batch before, if it was another one."""

    def setup(self):
        self.last = None

    def spikes(self, s):
        last, self.last = self.last, s.detach()
        if last is None or last.shape != s.shape or torch.equal(last, s):
            return s
        return s + last


# chance


class OwnGenerator(Events):
    """Noise of numpy from a generator of its own."""

    def setup(self):
        self.rng = np.random.default_rng(0)

    def middle(self, z):
        return z + torch.from_numpy(self.rng.normal(size=9)).to(z)


class FreshGenerator(Events):
    """Noise of a generator with a fresh seed."""

    def middle(self, z):
        generator = torch.Generator()
        generator.seed()
        return z + torch.randn(9, generator=generator).to(z)


class Addressed(Events):
    """Depends on where a tensor lies in memory."""

    def setup(self):
        self.seen = []

    def out(self, y):
        self.seen.append(y)  # kept, so that no later tensor has this address
        return y.mean(0) + id(y) // 16 % 2**20


FAULTS = {
    "a matrix of low rank": ("multiplications", LowRank, "hidden"),
    "rotary positions": ("multiplications", Rotary, ""),
    "sum of products": ("multiplications", Dictionary, ""),
    "logarithms": ("multiplications", Logarithms, ""),
    "fast weights": ("multiplications", FastWeights, ""),
    "a gradient at test time": ("multiplications", TestTimeGradient, "hidden"),
    "scatter_reduce": ("multiplications", Scattered, ""),
    "scatter_ that multiplies": ("multiplications", ScatteredInPlace, ""),
    "index_reduce": ("multiplications", IndexReduced, ""),
    "a conditional batch norm": ("multiplications", Conditional, ""),
    "a slope of currents": ("multiplications", OwnSlope, ""),
    "a leaky ReLU": ("multiplications", Leaky, ""),
    "currents of twelve bits": ("multiplications", FixedPoint, "leave"),
    "squeeze and excitation": ("multiplications", Excite, "head"),
    "a shortcut of membranes": ("multiplications", MembraneShortcut, "two"),
    "an unfolded convolution": ("multiplications", Unfolded, ""),
    "a peek": ("causality", Peek, ""),
    "quantile of all timesteps": ("causality", Threshold, ""),
    "filled from behind": ("causality", Filled, ""),
    "samples not sorted back": ("leak", Unsorted, ""),
    "mixup": ("leak", Mixed, ""),
    "place in the batch": ("leak", Placed, ""),
    "batch norm without statistics": ("leak", NoStatistics, "bn"),
    "a rank in a named tuple": ("leak", Ranked, ""),
    "a cache by shape": ("state", Cached, ""),
    "the loudest ever": ("state", LoudestEver, ""),
    "weights that change": ("state", KeepsSpikes, "hidden"),
    "a counter of the class": ("state", OfTheClass, ""),
    "a default argument": ("state", DefaultArgument, ""),
    "the batch before": ("state", LastBatch, ""),
    "a generator of its own": ("state", OwnGenerator, ""),
    "a fresh generator": ("determinism", FreshGenerator, ""),
    "an address": ("determinism", Addressed, ""),
}
PICTURES = (Excite, MembraneShortcut, Unfolded)
"""They take images; ``NormalisedBatchFirst`` the batch first; all others recordings."""
HIDDEN = {
    "backwards and forwards": ("causality", Backwards),
    "functions only": ("causality", NoModules),
    "normalised, batch first": ("causality", NormalisedBatchFirst),
}
"""Faults that are out of sight: they must not be said to hold."""


# clean networks


class Convolutions(nn.Module):
    """``[B, T, 2, H, W]`` of event counts, as recordings come from loaders."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1, self.lif1 = nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), LIF()
        self.conv2, self.lif2 = nn.Conv2d(5, 6, 3, stride=2), LIF()
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = x.permute(1, 0, 2, 3, 4)
        z = self.bn1(self.conv1(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        z = self.conv2(self.lif1(z).flatten(0, 1)).unflatten(0, x.shape[:2])
        return self.head(self.lif2(z).flatten(2)).mean(0)


class Recurrent(nn.Module):
    """Spikes fed back through weights."""

    def __init__(self):
        super().__init__()
        self.enter, self.again, self.head = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 4)

    def forward(self, x):
        v = s = torch.zeros(x.shape[1], 9).to(x)
        out = []
        for frame in x:
            v = 0.8 * v * (1 - s) + self.enter(frame) + self.again(s)
            s = spike(v - 0.5)
            out.append(self.head(s))
        return torch.stack(out).sum(0)


class Adaptive(nn.Module):
    """A threshold that rises with spikes, and refractory timesteps."""

    def __init__(self):
        super().__init__()
        self.enter, self.head = nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x):
        v = a = rest = torch.zeros(x.shape[1], 9).to(x)
        out = []
        for frame in x:
            v = 0.8 * v + self.enter(frame)
            s = spike(v - 0.4 - 0.3 * a) * (rest == 0)
            a, rest = 0.9 * a + s, torch.where(s > 0, torch.ones_like(s), (rest - 1).clamp(min=0))
            v = torch.where(s > 0, torch.zeros_like(v), v)
            out.append(s)
        return self.head(torch.stack(out)).mean(0)


class UNet(nn.Module):
    """Down, up and a shortcut by concatenation."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 2, 2)
        self.up, self.out = nn.ConvTranspose2d(6, 4, 2, 2), nn.Conv2d(8, 1, 1)
        self.a, self.b, self.c = (lbq.BurstLIF(3, step=0.3) for _ in range(3))

    def each(self, layer, x):
        return layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def forward(self, x):
        one = self.a(self.stem(x).expand(T, -1, -1, -1, -1))
        two = self.b(self.each(self.down, one))
        three = self.c(self.each(self.up, two))
        return self.each(self.out, torch.cat([one, three], 2)).mean(0)


class Siamese(nn.Module):
    """Compares two halves of its input."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, 9), lbq.RepeatOverTime(3), lbq.BurstLIF(3, step=0.2), nn.Linear(9, 4),
            lbq.MeanOverTime(),
        )  # fmt: skip

    def forward(self, x):
        one, two = self.net(x[:, :3]), self.net(x[:, 3:])
        return (one - two).abs().sum(1)


class Graph(nn.Module):
    """Spikes of nodes, passed along a fixed graph."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.register_buffer("edges", (torch.rand(6, 6) < 0.4).float())
        self.enter, self.head = nn.Linear(1, 9), nn.Linear(9, 4)
        self.one, self.two = LIF(), LIF()

    def forward(self, x):  # [T, B, nodes]
        s = self.one(self.enter(x.unsqueeze(-1)))
        return self.head(self.two(self.edges @ s)).sum((0, 2))


class Tokens(nn.Module):
    """Words to spikes: an embedding, and a mask for the padding."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.one, self.two = lbq.BurstLIF(3, step=0.2), lbq.BurstLIF(3, step=0.2)

    def forward(self, tokens):  # [B, N]
        e = self.words(tokens) * (tokens > 0).unsqueeze(-1)
        s = self.one(e.expand(3, -1, -1, -1))
        return self.head(self.two(self.mix(s))).mean((0, 2))


class LoRA(nn.Module):
    """Weights with a correction of low rank; the product is of weights alone."""

    def __init__(self):
        super().__init__()
        self.enter, self.lif, self.base = nn.Linear(6, 9), LIF(), nn.Linear(9, 9)
        self.a, self.b = nn.Parameter(torch.randn(9, 2)), nn.Parameter(torch.randn(2, 9))
        self.lif2, self.head = LIF(), nn.Linear(9, 4)

    def forward(self, x):
        weight = self.base.weight + 0.5 * self.a @ self.b
        return self.head(self.lif2(F.linear(self.lif(self.enter(x)), weight, self.base.bias))).mean(
            0
        )


class BinaryWeights(Events):
    """Signs of weights, times their mean size per row."""

    def forward(self, x):
        w = self.hidden.weight
        w = w.sign() * w.abs().mean(1, keepdim=True)
        s = self.lif1(self.enter(x))
        return self.leave(self.lif2(F.linear(s, w))).mean(0)


class Winners(Events):
    """Only the three loudest currents of a layer count."""

    def middle(self, z):
        mask = torch.zeros_like(z).scatter(-1, z.topk(3, -1).indices, 1.0)
        return z * mask


class Inhibition(Events):
    """Every spike inhibits its neighbours by a fixed matrix."""

    def setup(self):
        self.register_buffer("lateral", torch.eye(9).roll(1, 0) + torch.eye(9).roll(-1, 0))

    def middle(self, z):
        return z - 0.2 * (self.lif1(z) @ self.lateral)


class OnAndOff(Events):
    """The difference of two populations."""

    def spikes(self, s):
        return s - self.lif2(1.0 - self.hidden(s))


class Watched(Events):
    """Stores rates and outputs to look at later, and uses none of it."""

    def setup(self):
        self.rates, self.history = {}, []

    def spikes(self, s):
        self.rates["one"] = s.mean()
        self.history.append(s.detach().sum())
        return s


@dataclass
class Answer:
    """What a network says."""

    logits: torch.Tensor
    spikes: list[torch.Tensor]


class Structured(Events):
    """Returns a dataclass."""

    def out(self, y):
        return Answer(y.mean(0), [y])


class Patches(nn.Module):
    """Patches of images as tokens, mixed by levels and a mask."""

    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, 8, 4, 4)
        self.place = nn.Parameter(torch.randn(1, 4, 8) * 0.3)
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.nq, self.nk, self.nv, self.ne, self.no = (lbq.BurstLIF(3, step=0.3) for _ in range(5))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        z = self.cut(x).flatten(2).transpose(1, 2) + self.place
        s = self.ne(z.unsqueeze(0).repeat(2, 1, 1, 1))
        q, k, v = self.nq(self.q(s)), self.nk(self.k(s)), self.nv(self.v(s))
        mask = torch.ones(4, 4, dtype=torch.bool).tril()
        mixed = (q @ k.mT).masked_fill(~mask, 0.0) @ v * 0.125
        return self.head(self.no(mixed).mean(2)).mean(0)


class SpikeCounts(nn.Module):
    """A stem that emits counts at once and no sequence."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x):
        s = (self.a(x) / 0.3).floor().clamp(0, 4)
        s = (self.b(s * 0.3) / 0.4).floor().clamp(0, 4)
        return self.c(s * 0.4)


class Delays(Events):
    """Synapses with delays of their own."""

    def spikes(self, s):
        late = torch.cat([torch.zeros_like(s[:2]), s[:-2]])
        return torch.cat([s[..., :4], late[..., 4:]], -1)


class Depthwise(nn.Module):
    """Separable convolutions with a neuron after each half."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            lbq.RepeatOverTime(2),
            lbq.OverTime(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)),
            lbq.BurstLIF(3, step=0.4),
            lbq.OverTime(nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)),
            lbq.BurstLIF(3, step=0.4),
            lbq.OverTime(nn.Conv2d(6, 8, 1), nn.MaxPool2d(2)), lbq.BurstLIF(3, step=0.4),
            lbq.OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 4)),
            lbq.MeanOverTime(),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


class Debugged(Events):
    """Asserts and branches on what it computes."""

    def middle(self, z):
        assert not z.isnan().any(), "diverged"
        if (z.abs() > 1e4).any():
            z = z.clamp(-1e4, 1e4)
        return z


class FourChannels(nn.Module):
    """Images of as many channels as there are timesteps, sent as first spike times."""

    def __init__(self):
        super().__init__()
        self.enter, self.lif, self.head = nn.Linear(T, 9), LIF(), nn.Linear(9, 4)

    def forward(self, x):  # [B, T], not a sequence
        when = ((2 - x.clamp(-2, 1.99)) * (T / 4)).long()
        code = torch.stack([(when == t).to(x) for t in range(T)])
        return self.head(self.lif(self.enter(code))).mean(0)


def counts():
    torch.manual_seed(6)
    return torch.randint(0, 3, (4, T, 2, 7, 7)).float()


CLEAN = {
    "convolutions on [B, T, ...]": (Convolutions, counts, 0),
    "recurrent": (Recurrent, recordings, 1),
    "adaptive": (Adaptive, recordings, 1),
    "U-Net": (UNet, pictures, 0),
    "siamese": (Siamese, lambda: 2 * recordings()[0], 0),
    "graph": (Graph, recordings, 1),
    "tokens": (Tokens, lambda: torch.randint(0, 20, (6, 5)), 0),
    "LoRA": (LoRA, recordings, 1),
    "binary weights": (BinaryWeights, recordings, 1),
    "winners": (Winners, recordings, 1),
    "inhibition": (Inhibition, recordings, 1),
    "on and off": (OnAndOff, recordings, 1),
    "watched": (Watched, recordings, 1),
    "a dataclass": (Structured, recordings, 1),
    "patches": (Patches, pictures, 0),
    "counts at once": (SpikeCounts, lambda: recordings()[0], 0),
    "delays": (Delays, recordings, 1),
    "separable convolutions": (Depthwise, pictures, 0),
    "asserts": (Debugged, recordings, 1),
    "first spike times": (FourChannels, lambda: recordings().flatten(0, 1)[:9, :T], 0),
    "hand-written layers": (Events, recordings, 1),
}


# what cannot be seen


@torch.library.custom_op("lbq_test::square_into", mutates_args={"out"})
def square_into(z: torch.Tensor, out: torch.Tensor) -> None:
    """Write squares."""
    out.copy_(z * z)


class Mutating(Events):
    """An operator of its own that writes an argument and returns nothing."""

    def middle(self, z):
        out = torch.zeros_like(z)
        square_into(z, out)
        return out


class Pickled(Events):
    """Values through a pickle, as to another process."""

    def middle(self, z):
        return torch.tanh(pickle.loads(pickle.dumps(z)))


class Addresses(Events):
    """Memory written behind torch's back."""

    def middle(self, z):
        z, out = z.contiguous(), torch.zeros_like(z)
        ctypes.memmove(out.data_ptr(), z.data_ptr(), z.numel() * z.element_size())
        return out


class Storage(Events):
    """Values read from the storage."""

    def middle(self, z):
        z = z.contiguous()
        return torch.frombuffer(bytearray(bytes(z.untyped_storage())), dtype=z.dtype).view_as(z)


class Dynamic(Events):
    """A layer of eight bits."""

    def setup(self):
        self.third = torch.ao.nn.quantized.dynamic.Linear(9, 9)

    def middle(self, z):
        return self.third(z.float()).to(z)


class Branches(Events):
    """Control flow as an operator."""

    def middle(self, z):
        return torch.cond(z.sum() > 0, lambda v: v * v, lambda v: v + v, (z,))


def special(function):
    class Special(Events):
        """A function of ``torch.special``."""

        def middle(self, z):
            return function(z)

    return Special


UNKNOWN = {
    "an operator that writes": Mutating,
    "a pickle": Pickled,
    "addresses": Addresses,
    "a storage": Storage,
    "eight bits": Dynamic,
    "control flow": Branches,
    "lists in place": Foreach,
    "airy_ai": special(torch.special.airy_ai),
    "erfcx": special(torch.special.erfcx),
    "polygamma": special(lambda z: torch.polygamma(1, z.abs() + 1)),
    "igamma": special(lambda z: torch.igamma(z.abs() + 1, z.abs() + 1)),
    "hermite_polynomial_h": special(lambda z: torch.special.hermite_polynomial_h(z, 2)),
}
