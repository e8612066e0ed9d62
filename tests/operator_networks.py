"""Small integer networks with random shapes, built by hand: every engine must agree on them."""

import math
import random
from dataclasses import replace

import torch

from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.operators import (
    Concat,
    IntegerNeuron,
    Matmul,
    Merge,
    Multiply,
    Offset,
    Pool,
    Readout,
    RealNeuron,
    Rearrange,
    Repeat,
    Shortcut,
    Slice,
    Synapse,
    Upsample,
    ZeroPad,
)
from lbq.graph.operators.moves import Roll


class Builder:
    """An integer network as it grows, with the values of random inputs.

    Args:
        seed: decides everything.
        shape: of one sample at one timestep.
        batch: number of random inputs.
    """

    def __init__(self, seed, shape, *, batch=3):
        self.dice, self._generator = random.Random(seed), torch.Generator().manual_seed(seed)
        timesteps, takes_frames = self.dice.choice([1, 2, 3]), self.dice.random() < 0.4
        self.graph = GraphBuilder(
            timesteps=timesteps, input_shape=shape, takes_frames=takes_frames, logit_scale=0.5
        )
        leading = (timesteps, batch) if takes_frames else (batch,)
        self.inputs = self.random_integers(0, 255, (*leading, *shape)).to(torch.uint8)
        self.values = {INPUT: self.graph.finish().values()[INPUT]}
        self._tensors = {INPUT: self.inputs}

    def add(self, node, *sources):
        """Append a node and run it; return its path."""
        path = self.graph.add(f"layers.{node.op}", node, *sources)
        entering = [self.values[source] for source in sources]
        self.values[path] = node.infer(entering, timesteps=self.graph.timesteps)
        self._tensors[path] = node(*(self._tensors[source] for source in sources))
        return path

    def shape(self, path):
        """Return the shape of one sample at one timestep."""
        return self.values[path].shape

    def has_time(self, path):
        """Return ``has_time`` as most operators take it."""
        return {"has_time": self.values[path].has_time}

    def synapse(self, path, channels, *, kernel=None, bits=None, **settings):
        """Add a convolution, or without a kernel a linear layer."""
        bits = bits or self.dice.choice([4, 8, 16])
        groups, size = settings.get("groups", 1), math.prod(self.shape(path))
        inner = (size,) if kernel is None else (self.shape(path)[0] // groups, *kernel)
        # small sums, so that most networks stay exact in float32
        most = max(1, min(2 ** (bits - 1) - 1, 2**22 // (self._largest(path) * math.prod(inner))))
        dtype = torch.int16 if bits == 16 else torch.int8
        node = Synapse(
            self.random_integers(-most, most, (channels, *inner)).to(dtype),
            max_input=self._largest(path),
            bits=bits,
            **settings,
            **self.has_time(path),
        )
        shape = node.infer([self.values[path]], timesteps=self.graph.timesteps).shape
        bias = self.dice.choice([None, (channels,), shape])
        if bias is not None:
            node = replace(node, bias=self.random_integers(-500, 500, bias))
        return self.add(node, path)

    def shortcut(self, path):
        """Turn levels into currents, one weight per channel."""
        count = self.dice.choice([1, self.shape(path)[0]])
        weight = self.random_integers(-1, 3, (count,)).to(torch.int16)
        return self.add(
            Shortcut(weight, max_input=self._largest(path), **self.has_time(path)), path
        )

    def currents(self, path, channels):
        """Add a synapse that keeps the spatial axes."""
        axes = len(self.shape(path)) - 1
        if not axes:
            return self.synapse(path, channels)
        return self.synapse(path, channels, kernel=(3,) * axes, padding=(1,) * axes)

    def neuron(self, path, *, max_level=None):
        """Add a neuron, of currents with or without time; its thresholds suit the values."""
        if not self.values[path].has_time:
            path = self.add(Repeat(self.graph.timesteps), path)
        max_level = max_level or self.dice.choice([1, 2, 3, 7, 20])
        currents = self._tensors[path].movedim(2, 0).flatten(1).double()  # [C, T * B * n]
        low, high = (currents.quantile(share, dim=1) for share in (0.3, 0.9))
        low = low.clamp(min=1).round()
        step = ((high - low) / max_level).clamp(min=1).round()
        thresholds = (low + step * torch.arange(max_level).reshape(-1, 1)).to(torch.int32)
        shift = self.dice.choice([0, 3, 8])
        node = IntegerNeuron(
            thresholds,
            multiplier=self.dice.randint(0, 2**shift),
            shift=shift,
            reset_amount=thresholds[0].clone(),
            reset=self.dice.choice(["event", "level", "none", "zero"]),
        )
        return self.add(node, path)

    def levels(self, path, channels, *, max_level=None):
        """Add a synapse that keeps the spatial axes, and a neuron."""
        return self.neuron(self.currents(path, channels), max_level=max_level)

    def source(self, channels):
        """Return pixels, currents or levels, with or without time."""
        kind = self.dice.choice(["input", "currents", "repeated", "levels"])
        if kind == "input":
            return INPUT
        currents = self.currents(INPUT, channels)
        if kind == "levels":
            return self.neuron(currents)
        if kind == "currents" or self.values[currents].has_time:
            return currents
        return self.add(Repeat(self.graph.timesteps), currents)

    def readout(self, path):
        """Add a linear layer behind levels, or behind the neurons of currents, and an output."""
        if self.values[path].max_level is None:
            path = self.neuron(path)
        currents = self.synapse(path, 5)
        if not self.values[currents].has_time:
            currents = self.add(Repeat(self.graph.timesteps), currents)
        return self.add(Readout("sum"), currents)

    def finish(self, path):
        """End with an output; return the network and inputs."""
        self.readout(path)
        return self.graph.finish(), self.inputs

    def _largest(self, path):
        return self.values[path].max_level

    def random_integers(self, low, high, shape):
        """Return integers from low to high."""
        return torch.randint(
            low, high + 1, tuple(shape), dtype=torch.int32, generator=self._generator
        )


def random_shape(dice, *, axes=None):
    axes = dice.choice([1, 2]) if axes is None else axes
    return (dice.choice([2, 4, 6]), *(dice.randint(5, 8) for _ in range(axes)))


def start(seed, *, axes=None, batch=3):
    """Return a builder for inputs with so many spatial axes, one or two by default."""
    return Builder(seed, random_shape(random.Random(seed), axes=axes), batch=batch)


def synapse(seed, batch=3):
    """Convolutions along one or two axes: strides, padding, dilation, groups."""
    b = start(seed, batch=batch)
    path = b.levels(INPUT, 4)
    axes = len(b.shape(path)) - 1
    settings = {
        "stride": tuple(b.dice.choice([1, 2]) for _ in range(axes)),
        "padding": tuple(b.dice.choice([0, 1, 2]) for _ in range(axes)),
        "dilation": tuple(b.dice.choice([1, 2]) for _ in range(axes)),
        "groups": b.dice.choice([1, 2, 4]),
    }
    kernel = tuple(b.dice.choice([1, 2, 3]) for _ in range(axes))
    return b.finish(b.synapse(path, 8, kernel=kernel, **settings))


def linear(seed, batch=3):
    """Linear layers over features."""
    b = start(seed, axes=0, batch=batch)
    path = b.levels(INPUT, 9)
    summed = b.add(Merge(), b.currents(path, 7), b.currents(path, 7))
    return b.finish(summed)


def pool(seed, batch=3):
    """Pools of levels, currents and pixels, one behind the other."""
    b = start(seed, batch=batch)
    path = b.source(4)
    axes = len(b.shape(path)) - 1
    for _ in range(2):
        kernel = tuple(b.dice.choice([1, 2, 3]) for _ in range(axes))
        node = Pool(
            b.dice.choice(["max", "sum"]),
            kernel=kernel,
            stride=tuple(b.dice.choice([1, 2]) for _ in range(axes)),
            padding=tuple(b.dice.randint(0, k // 2) for k in kernel),
            **b.has_time(path),
        )
        path = b.add(node, path)
    if b.dice.random() < 0.3:
        path = b.add(Pool("sum", kernel=b.shape(path)[1:], **b.has_time(path)), path)
    return b.finish(path)


def concat(seed, batch=3):
    """Levels of several ranges, or currents, joined along any axis."""
    b = start(seed, batch=batch)
    sources = [b.currents(INPUT, 4) for _ in range(b.dice.randint(2, 4))]
    if b.dice.random() < 0.5:
        sources = [b.neuron(source) for source in sources]
        if b.dice.random() < 0.5:  # wider than a byte
            sources.append(b.add(Multiply(), b.neuron(b.currents(INPUT, 4)), sources[0]))
    axis = b.dice.randrange(len(b.shape(sources[0])))
    return b.finish(b.add(Concat(axis=axis, **b.has_time(sources[0])), *sources))


def slice_(seed, batch=3):
    """A part of any axis, of anything."""
    b = start(seed, batch=batch)
    path = b.source(6)
    for _ in range(2):
        axis = b.dice.randrange(len(b.shape(path)))
        first = b.dice.randrange(b.shape(path)[axis])
        stop = b.dice.randint(first + 1, b.shape(path)[axis])
        step = b.dice.choice([1, 2])
        node = Slice(axis=axis, start=first, stop=stop, step=step, **b.has_time(path))
        path = b.add(node, path)
    return b.finish(path)


def rearrange(seed, batch=3):
    """Axes split into factors, permuted and merged."""
    b = start(seed, batch=batch)
    path = b.source(6)
    sizes = []
    for size in b.shape(path):
        factor = b.dice.choice([f for f in range(1, size + 1) if size % f == 0])
        sizes += [factor, size // factor]
    order = b.dice.sample(range(len(sizes)), len(sizes))
    moved = [sizes[axis] for axis in order]
    cut = b.dice.randint(1, len(sizes))
    shape = (math.prod(moved[:cut]), *([math.prod(moved[cut:])] if cut < len(sizes) else []))
    node = Rearrange(sizes=tuple(sizes), order=tuple(order), shape=shape, **b.has_time(path))
    return b.finish(b.add(node, path))


def roll(seed, batch=3):
    """Axes of anything read from another place on, or backwards."""
    b = start(seed, batch=batch)
    path = b.source(6)
    for _ in range(2):
        axis = b.dice.randrange(len(b.shape(path)))
        first, step = b.dice.randrange(b.shape(path)[axis]), b.dice.choice([1, -1])
        path = b.add(Roll(axis=axis, start=first, step=step, **b.has_time(path)), path)
    return b.finish(path)


def upsample(seed, batch=3):
    """Every position repeated, or zeros between."""
    b = start(seed, batch=batch)
    path = b.source(3)
    factors = tuple(b.dice.choice([1, 2, 3]) for _ in b.shape(path)[1:])
    fill = b.dice.choice(["nearest", "zeros"])
    path = b.add(Upsample(factors=factors, fill=fill, **b.has_time(path)), path)
    return b.finish(path if b.values[path].max_level is None else b.currents(path, 4))


def zero_pad(seed, batch=3):
    """Zeros around the spatial axes, and the largest values of windows over them."""
    b = start(seed, batch=batch)
    path = b.source(3)
    before, after = (tuple(b.dice.randint(0, 2) for _ in b.shape(path)[1:]) for _ in range(2))
    path = b.add(ZeroPad(before=before, after=after, **b.has_time(path)), path)
    if b.dice.random() < 0.5:
        kernel = (2,) * len(before)
        path = b.add(
            Pool("max", kernel=kernel, padding=(1,) * len(before), **b.has_time(path)), path
        )
    return b.finish(path if b.values[path].max_level is None else b.currents(path, 4))


def transposed(seed, batch=3):
    """A transposed convolution: zeros between and around, then a convolution."""
    b = start(seed, batch=batch)
    path = b.levels(INPUT, 4)
    axes = len(b.shape(path)) - 1
    path = b.add(Upsample(factors=(2,) * axes, fill="zeros", **b.has_time(path)), path)
    path = b.add(ZeroPad(before=(1,) * axes, after=(2,) * axes, **b.has_time(path)), path)
    return b.finish(b.synapse(path, 3, kernel=(3,) * axes))


def offset(seed, batch=3):
    """A constant for every position, or for every channel."""
    b = start(seed, batch=batch)
    path = b.currents(INPUT, 4)
    if b.dice.random() < 0.5:
        path = b.currents(b.neuron(path), 4)
    shape = [b.dice.choice([1, size]) for size in b.shape(path)]
    return b.finish(b.add(Offset(b.random_integers(-900, 900, shape)), path))


def multiply(seed, batch=3):
    """Products of levels with levels, some repeated along an axis, some beyond a byte."""
    b = start(seed, batch=batch)
    left, right = b.levels(INPUT, 4), b.levels(INPUT, b.dice.choice([1, 4]))
    if b.dice.random() < 0.5:
        right = b.add(
            Pool("sum", kernel=b.shape(right)[1:], **b.has_time(right)), right
        )  # [C, 1, ...]
    product = b.add(Multiply(), left, right)
    if b.dice.random() < 0.5:
        product = b.add(Multiply(), product, left)
    return b.finish(b.shortcut(product) if b.dice.random() < 0.5 else product)


def matmul(seed, batch=3):
    """Attention without softmax over tokens, ``[C, N]``, in heads: both associations."""
    b = start(seed, axes=1, batch=batch)
    tokens, heads = b.shape(INPUT)[1], b.dice.choice([1, 2])
    width = b.dice.choice([2, 3, 8])

    def split(path, order):
        sizes = (heads, width, tokens)
        shape = tuple(sizes[axis] for axis in order)
        return b.add(Rearrange(sizes=sizes, order=order, shape=shape), path)

    query, key, value = (b.levels(INPUT, heads * width) for _ in range(3))
    query, value = (split(path, (0, 2, 1)) for path in (query, value))  # [heads, N, width]
    key = split(key, (0, 1, 2))  # [heads, width, N]
    if b.dice.random() < 0.5:
        made = b.add(Matmul(), b.add(Matmul(), query, key), value)
    else:
        made = b.add(Matmul(), query, b.add(Matmul(), key, value))
    merged = Rearrange(sizes=(heads, tokens, width), order=(0, 2, 1), shape=(heads * width, tokens))
    return b.finish(b.shortcut(b.add(merged, made)))


def outputs(seed, batch=3):
    """Two or three outputs of several shapes."""
    b = start(seed, batch=batch)
    path = b.levels(INPUT, 4)
    b.readout(path)
    over_space = b.currents(path, 3)
    b.add(Readout("sum"), over_space)
    if b.dice.random() < 0.5:
        b.readout(b.neuron(over_space))
    return b.graph.finish(), b.inputs


def unet(seed, batch=3):
    """Down, up and a concatenation with what was before."""
    b = Builder(seed, (2, 8, 8), batch=batch)
    fine = b.levels(INPUT, 4)
    coarse = b.levels(b.add(Pool("max", kernel=(2, 2), stride=(2, 2)), fine), 6)
    up = b.add(Upsample(factors=(2, 2)), coarse)
    joined = b.add(Concat(axis=0), up, fine)
    first = b.add(Slice(axis=0, start=0, stop=4), joined)
    summed = b.add(Merge(), b.currents(joined, 4), b.shortcut(first))
    return b.finish(b.add(Offset(b.random_integers(-50, 50, (4, 1, 1))), summed))


NETWORKS = {
    build.__name__.rstrip("_"): build
    for build in (
        *(synapse, linear, pool, concat, slice_, rearrange, roll, upsample, zero_pad, transposed),
        *(offset, multiply, matmul, outputs, unet),
    )
}
"""By name: ``NETWORKS[name](seed, batch=3)`` returns a network and uint8 inputs for it."""


def real_network(network):
    """Return a network of real numbers with the same operators; it takes real inputs."""
    made = GraphBuilder(
        timesteps=network.timesteps,
        input_shape=network.input_shape,
        takes_frames=network.takes_frames,
    )
    for path, node, inputs in network.nodes:
        largest = made.finish().values()[inputs[0]].max_level
        made.add(path, _real_node(node, largest), *inputs)
    return made.finish()


def _real_node(node, largest):
    if isinstance(node, Synapse):
        bias = None if node.bias is None else node.bias.float()
        return replace(node, weight=node.weight.float(), bias=bias, max_input=largest, bits=None)
    if isinstance(node, Shortcut):
        return Shortcut(node.weight.float(), max_input=largest, has_time=node.has_time)
    if isinstance(node, IntegerNeuron):
        thresholds, reset_amount = node.thresholds.float(), node.reset_amount.float()
        decay = torch.tensor([node.carry_share])
        return RealNeuron(thresholds, decay=decay, reset_amount=reset_amount, reset=node.reset)
    if isinstance(node, Offset):
        return Offset(node.bias.float())
    return Readout("mean") if isinstance(node, Readout) else node
