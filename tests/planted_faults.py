"""Networks with one planted fault each, in many styles, and clean ones in the same styles.

``PRODUCTS`` put a real-valued product, or another function of real numbers, on currents.
``UNKNOWN`` run operators that an audit does not know. The others break one promise each.
"""

import random
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import lbq

T, WIDTH = 4, 8
W = torch.linspace(-1, 1, WIDTH * WIDTH).view(WIDTH, WIDTH).sin()


class Net(nn.Module):
    """Two layers of neurons; ``inner`` sees bursts, ``current`` currents, ``end`` the readout."""

    def __init__(self, *, inner=None, current=None, end=None, **modules):
        super().__init__()
        self.first, self.repeat = nn.Linear(6, WIDTH), lbq.RepeatOverTime(T)
        self.neuron = lbq.BurstLIF(3, step=0.2)
        self.second, self.neuron2 = nn.Linear(WIDTH, WIDTH), lbq.BurstLIF(3, step=0.2)
        self.readout = nn.Linear(WIDTH, 3)
        self.weight = nn.Parameter(W.clone())
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        for name, module in modules.items():
            setattr(self, name, module)
        self.inner, self.current, self.end = inner, current, end

    def forward(self, x):
        bursts = self.neuron(self.repeat(self.first(x)))
        if self.inner:
            bursts = self.inner(self, bursts)
        currents = self.second(bursts)
        if self.current:
            currents = self.current(self, currents)
        answers = self.readout(self.neuron2(currents))  # [T, B, 3]
        return self.end(self, answers) if self.end else answers.mean(0)


class Frames(nn.Module):
    """Takes frames ``[T, B, 6]``; ``before`` sees them all at once."""

    def __init__(self, *, before=None, current=None, end=None):
        super().__init__()
        self.first, self.neuron = nn.Linear(6, WIDTH), lbq.BurstLIF(3, step=0.2)
        self.readout = nn.Linear(WIDTH, 3)
        self.before, self.current, self.end = before, current, end

    def forward(self, x):
        if self.before:
            x = self.before(x)
        currents = self.first(x)
        if self.current:
            currents = self.current(currents)
        answers = self.readout(self.neuron(currents))
        return self.end(answers) if self.end else answers.mean(0)


def samples(count=12):
    torch.manual_seed(1)
    return 2 * torch.randn(count, 6)


def frames(count=6):
    torch.manual_seed(1)
    return 2 * torch.randn(T, count, 6)


def rows(z):
    return z.flatten(0, 1)


def quietly(function):
    """Call what torch calls deprecated; networks use it all the same."""

    def call(argument):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(argument)

    return call


script = quietly(torch.jit.script)


def _matmul_and_gate(z: torch.Tensor, weight: torch.Tensor):
    return torch.matmul(z, weight) * z


scripted = script(_matmul_and_gate)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.clone().mul_(z)

    @staticmethod
    def backward(ctx, grad):
        return grad


@torch.library.custom_op("lbq_test::times_itself", mutates_args=())
def times_itself(z: torch.Tensor) -> torch.Tensor:
    return z * z


def in_inference_mode(z, weight):
    with torch.inference_mode():
        return (z @ weight).clone()


def into_buffer(z):
    buffer = torch.empty_like(z)
    torch.mul(z, z, out=buffer)
    return buffer


def one_by_one(z, weight):
    return torch.stack([torch.mv(weight, row) for row in rows(z)]).view_as(z)


def in_a_thread(z, weight):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: z.detach() @ weight.detach()).result()


# ways that were missed by an audit of Python's names (the first half), and others (written later)
PRODUCTS = {
    "GRU": (lambda s, z: s.gru(z)[0], {"gru": nn.GRU(WIDTH, WIDTH)}),
    "MultiheadAttention": (
        lambda s, z: s.attention(z, z, z)[0], {"attention": nn.MultiheadAttention(WIDTH, 2)}),
    "TransformerEncoderLayer": (
        lambda s, z: s.layer(z), {"layer": nn.TransformerEncoderLayer(WIDTH, 2, 16)}),
    "Bilinear": (lambda s, z: s.bilinear(z, z), {"bilinear": nn.Bilinear(WIDTH, WIDTH, WIDTH)}),
    "weight on the left": lambda s, z: (s.weight @ z.unsqueeze(-1)).squeeze(-1),
    "einsum": lambda s, z: torch.einsum("ij,tbj->tbi", s.weight, z),
    "tensordot": lambda s, z: torch.tensordot(z, s.weight, 1),
    "addmm": lambda s, z: torch.addmm(torch.zeros(WIDTH).to(z), rows(z), s.weight).view_as(z),
    "mv": lambda s, z: one_by_one(z, s.weight),
    "inner": lambda s, z: torch.stack([s.weight.inner(v) for v in rows(z)]).view_as(z),
    "outer": lambda s, z: torch.outer(z.flatten(), s.gain).sum(-1).view_as(z),
    "addcmul": lambda s, z: torch.addcmul(torch.zeros(1).to(z), z, z),
    "power": lambda s, z: z**2,
    "square": lambda s, z: z.square(),
    "pow": lambda s, z: torch.pow(z, 3),
    "multiply": lambda s, z: torch.multiply(z, z),
    "operator": lambda s, z: z * z,
    "lerp": lambda s, z: torch.lerp(z, z * 0 + 1, z.abs()),
    "cumprod": lambda s, z: torch.cumprod(z, -1),
    "prod": lambda s, z: z.prod(-1, keepdim=True).expand_as(z),
    "normalize": lambda s, z: F.normalize(z, dim=-1),
    "multi_dot": lambda s, z: torch.linalg.multi_dot([rows(z), s.weight, s.weight]).view_as(z),
    "ger": lambda s, z: torch.stack([torch.ger(v, s.gain).sum(1) for v in rows(z)]).view_as(z),
    "aten.mm": lambda s, z: torch.ops.aten.mm.default(rows(z), s.weight).view_as(z),
    "aten.mul": lambda s, z: torch.ops.aten.mul.Tensor(z, z),
    "linalg.matmul": lambda s, z: torch.linalg.matmul(z, s.weight.data.clone() * 1),
    "sparse.mm": lambda s, z: torch.sparse.mm(s.weight.to_sparse(), rows(z).T).T.reshape(z.shape),
    "cdist": lambda s, z: torch.cdist(z, s.weight),
    "cosine_similarity": lambda s, z: F.cosine_similarity(z.unsqueeze(-2), s.weight, dim=-1),
    "fft": lambda s, z: torch.fft.rfft(z).abs()[..., :1].expand_as(z),
    "jit.script": lambda s, z: scripted(z, s.weight),
    "embedding_bag": lambda s, z: F.embedding_bag(
        torch.arange(WIDTH).repeat(rows(z).shape[0], 1), s.weight,
        per_sample_weights=rows(z).contiguous(), mode="sum").view_as(z),
    "autograd.Function": lambda s, z: Squared.apply(z),
    "softmax": lambda s, z: z.softmax(-1),
    # written after the redesign
    "a second linear layer": (lambda s, z: s.third(z), {"third": nn.Linear(WIDTH, WIDTH)}),
    "LayerNorm": (lambda s, z: s.norm(z), {"norm": nn.LayerNorm(WIDTH)}),
    "GroupNorm": (
        lambda s, z: s.norm(rows(z)).view_as(z), {"norm": nn.GroupNorm(2, WIDTH)}),
    "LSTMCell": (
        lambda s, z: torch.stack([s.cell(v)[0] for v in z]), {"cell": nn.LSTMCell(WIDTH, WIDTH)}),
    "scripted Linear": (
        lambda s, z: s.third(z), {"third": script(nn.Linear(WIDTH, WIDTH))}),
    "swish by hand": lambda s, z: z / (1 + (-z).exp()),
    "in place": lambda s, z: z.clone().mul_(z),
    "one channel in place": lambda s, z: _in_place(z),
    "out=": lambda s, z: into_buffer(z),
    "inference mode": lambda s, z: in_inference_mode(z, s.weight),
    "vmap": lambda s, z: torch.vmap(lambda v: v @ s.weight)(rows(z)).view_as(z),
    "functional_call": (
        lambda s, z: torch.func.functional_call(s.third, {"weight": s.weight}, (z,)),
        {"third": nn.Linear(WIDTH, WIDTH)}),
    "kernel made of currents": lambda s, z: F.linear(z, z.mean((0, 1)).outer(s.gain)),
    "gate of an average": lambda s, z: z * z.mean(-1, keepdim=True),
    "divided by its deviation": lambda s, z: z / (z.std() + 1),
    "divided by its largest": lambda s, z: z / z.abs().amax(-1, keepdim=True).clamp_min(0.1),
    "scaled_dot_product_attention": lambda s, z: F.scaled_dot_product_attention(z, z, z),
    "kron": lambda s, z: torch.kron(z.flatten(), s.gain)[: z.numel()].view_as(z),
    "correlation": lambda s, z: F.conv1d(rows(z)[None], rows(z)[:, None, :3], padding=1,
                                         groups=rows(z).shape[0])[0].view_as(z),
    "transposed convolution": lambda s, z: F.conv_transpose1d(
        rows(z)[:, None], s.gain[None, None, :3], padding=1)[:, 0].view_as(z),
    "a weight for every position": lambda s, z: z * s.weight[:T, None].clone(),
    "complex": lambda s, z: torch.view_as_real(torch.polar(z.abs(), z))[..., 0],
    "bilinear interpolation": lambda s, z: F.interpolate(
        z, scale_factor=2, mode="linear")[..., ::2],
    "batch norm of the batch": lambda s, z: F.batch_norm(
        rows(z), None, None, training=True).view_as(z),
    "hypotenuse": lambda s, z: torch.hypot(z, z.roll(1, -1)),
    "trapezoid": lambda s, z: z + torch.trapezoid(z, z.cumsum(-1), dim=-1).unsqueeze(-1),
    "compiled": lambda s, z: _compiled(z),
}  # fmt: skip


def _in_place(z):
    z = z.clone()
    z[..., 0] *= z[..., 1]
    return z


def _compiled(z):
    return torch.compile(lambda v: v * v.sigmoid(), backend="eager")(z)


UNKNOWN = {
    "a custom operator": lambda s, z: times_itself(z),
    "numpy": lambda s, z: torch.from_numpy(z.detach().numpy() @ s.weight.detach().numpy()),
    "a Python list": lambda s, z: torch.tensor(z.detach().tolist(), dtype=z.dtype),
    "a Python number": lambda s, z: z * float(z.detach().abs().max()),
    "another thread": lambda s, z: in_a_thread(z, s.weight),
    "dlpack": lambda s, z: torch.from_dlpack(np.square(np.from_dlpack(z.detach()))),
    "bessel_j0": lambda s, z: torch.special.bessel_j0(z),
    "i1": lambda s, z: torch.special.i1(z),
    "ndtri": lambda s, z: torch.special.ndtri(z.clamp(0.1, 0.9)),
    "zeta": lambda s, z: torch.special.zeta(z.abs() + 2, 2.0),
    "digamma": lambda s, z: torch.digamma(z.abs() + 1),
    "histc": lambda s, z: z + torch.histc(z, WIDTH).to(z),
    "nextafter": lambda s, z: torch.nextafter(z, z + 1),
    "gcd of integers": lambda s, z: z + torch.gcd(z.long(), z.long() + 2),
}


def centred(z):
    """A convolution over time that also reads the next timestep."""
    kernel = torch.ones(WIDTH, 1, 3).to(z)
    series = z.permute(1, 2, 0)  # [B, C, T]
    return F.conv1d(series, kernel, padding=1, groups=WIDTH).permute(2, 0, 1)


def causal(z):
    """The same that reads the past only."""
    kernel = torch.ones(WIDTH, 1, 3).to(z)
    series = F.pad(z.permute(1, 2, 0), (2, 0))
    return F.conv1d(series, kernel, groups=WIDTH).permute(2, 0, 1)


class BatchFirst(nn.Module):
    """Subtracts the mean over time of ``[B, T, C]``."""

    def forward(self, y):
        return y - y.mean(1, keepdim=True)


class OverAllTime(nn.Module):
    """Subtracts the mean over time of ``[T, B, C]``."""

    def forward(self, y):
        return y - y.mean(0, keepdim=True)


LOOKS_AHEAD = {
    "mean": (lambda: Net(inner=lambda s, y: y - y.mean(0, keepdim=True)), ""),
    "roll": (lambda: Net(inner=lambda s, y: y.roll(-1, 0)), ""),
    "reversed sum at the output": (
        lambda: Net(end=lambda s, y: y.flip(0).cumsum(0).flip(0)), ""),
    "largest of all frames": (
        lambda: Frames(current=lambda z: z + z.amax(0, keepdim=True)), ""),
    "a module": (lambda: Net(inner=lambda s, y: s.ahead(y), ahead=OverAllTime()), "ahead"),
    "a module with the batch first": (
        lambda: Net(inner=lambda s, y: s.ahead(y.transpose(0, 1)).transpose(0, 1),
                    ahead=BatchFirst()), "ahead"),
    # written after the redesign
    "both directions": (
        lambda: Net(current=lambda s, z: s.rnn(z)[0],
                    rnn=nn.RNN(WIDTH, WIDTH // 2, bidirectional=True)), "rnn"),
    "centred convolution": (lambda: Net(current=lambda s, z: centred(z)), ""),
    "softmax over time": (lambda: Net(current=lambda s, z: z.softmax(0)), ""),
    "sorted in time": (lambda: Net(current=lambda s, z: z.sort(0).values), ""),
    "attention between timesteps": (
        lambda: Net(current=lambda s, z: torch.einsum("sbc,tbc->tbc", z, z)), ""),
    "frames normalised by the recording": (
        lambda: Frames(before=lambda x: (x - x.mean(0)) / x.std(0)), ""),
    "frames scaled by their largest": (lambda: Frames(before=lambda x: x / x.abs().amax()), ""),
    "the last timestep first": (lambda: Frames(current=lambda z: z.flip(0)), ""),
    "spectrum over time": (
        lambda: Frames(current=lambda z: torch.fft.fft(z, dim=0).real), ""),
    "padded at the wrong end": (
        lambda: Frames(current=lambda z: torch.cat([z[1:], z[:1] * 0])), ""),
}  # fmt: skip


class Counting(nn.Module):
    """Does something else from a certain call on."""

    def __init__(self, first):
        super().__init__()
        self.first, self.calls = first, 0

    def forward(self, y):
        self.calls += 1
        return y + 0.3 * (self.calls >= self.first)


class Averaging(nn.Module):
    """A running mean of all calls, in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, y):
        self.mean.mul_(0.9).add_(0.1 * y.mean((0, 1)))
        return y - self.mean


class Listing(nn.Module):
    """Keeps what it saw in a list."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, y):
        self.seen.append(y.detach())
        return y + 0.2 * len(self.seen)


_CALLS = [0]


def with_global(s, y):
    _CALLS[0] += 1
    return y + 0.2 * (_CALLS[0] % 2)


def _kept(net, y):
    before = getattr(net, "kept", None)
    net.kept = y.detach() if before is None or before.shape != y.shape else before * 0.5 + y
    return net.kept


def _counted(net, y):
    net.count = getattr(net, "count", 0) + 1
    return y.mean(0), y.mean(0) * net.count


KEEPS_STATE = {
    "a tensor": (lambda: Net(inner=_kept), ""),
    "a second output": (lambda: Net(end=_counted), ""),
    "from the second call on": (
        lambda: Net(inner=lambda s, y: s.count(y), count=Counting(2)), "count"),
    "from the third call on": (
        lambda: Net(inner=lambda s, y: s.count(y), count=Counting(3)), "count"),
    "a buffer": (lambda: Net(inner=lambda s, y: s.mean(y), mean=Averaging()), "mean"),
    "a list": (lambda: Net(inner=lambda s, y: s.seen(y), seen=Listing()), "seen"),
    "a global variable": (lambda: Net(inner=with_global), ""),
}  # fmt: skip


LEAKS = {
    "second output": (lambda: Net(end=lambda s, y: (y.mean(0), y.mean(0) - y.mean((0, 1)))), ""),
    "every pair of samples": (lambda: Net(end=lambda s, y: y.mean(0) @ y.mean(0).T), ""),
    "integers": (lambda: Net(end=lambda s, y: (y.mean(0) - y.mean((0, 1))).argmax(1)), ""),
    "more than eight samples": (
        lambda: Net(inner=lambda s, y: y if y.shape[1] <= 8 else y - y.mean(1, keepdim=True)), ""),
    "any sample that is loud": (
        lambda: Net(inner=lambda s, y: y + 0.4 * (y.amax((0, 2)) >= 0.59).any()), ""),
    "batch norm in training": (
        lambda: Net(current=lambda s, z: F.batch_norm(
            rows(z), None, None, training=True).view_as(z)), ""),
    # written after the redesign
    "softmax over samples": (lambda: Net(end=lambda s, y: y.mean(0).softmax(0)), ""),
    "the neighbour": (lambda: Net(current=lambda s, z: z + 0.1 * z.roll(1, 1)), ""),
    "the first sample": (lambda: Net(current=lambda s, z: z + z[:, :1]), ""),
    "ranked among samples": (
        lambda: Net(end=lambda s, y: {"rank": y.mean(0).argsort(0).argsort(0)}), ""),
    "largest of the batch": (lambda: Net(current=lambda s, z: z / z.abs().max()), ""),
    "time and batch mixed up": (
        lambda: Net(current=lambda s, z: z.transpose(0, 1).reshape(z.shape)), ""),
    "in a dictionary": (
        lambda: Net(end=lambda s, y: {"answer": y.mean(0), "extra": [y.mean(0).cumsum(0)]}), ""),
    "with dropout": (
        lambda: Net(current=lambda s, z: F.dropout(z, 0.3, True) + z.mean(1, keepdim=True)), ""),
}  # fmt: skip

RANDOM = {
    "dropout": (lambda: Net(inner=lambda s, y: F.dropout(y, 0.5, True)), ""),
    "dropout module": (
        lambda: Net(inner=lambda s, y: s.drop.train()(y), drop=nn.Dropout()),
        "drop",
    ),
    "second output": (lambda: Net(end=lambda s, y: (y.mean(0), torch.randn(3))), ""),
    "integers": (lambda: Net(end=lambda s, y: (y.mean(0), torch.randint(99, (4,)))), ""),
    # written after the redesign
    "numpy": (lambda: Net(current=lambda s, z: z + np.random.rand()), ""),  # noqa: NPY002
    "Python": (lambda: Net(current=lambda s, z: z + random.random()), ""),
    "the clock": (lambda: Net(current=lambda s, z: z + time.perf_counter_ns() % 97), ""),
    "spikes": (lambda: Net(inner=lambda s, y: torch.bernoulli(torch.full_like(y, 0.4))), ""),
}
