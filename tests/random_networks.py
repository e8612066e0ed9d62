"""Random networks for tests: branches, sums, concatenations, pools, strides, groups, any neuron."""

import random

import torch
from torch import nn

import lbq
from lbq import neurons
from lbq.errors import BoundError
from lbq.time import MeanOverTime, OverTime, RepeatOverTime


def to_proven_integers(lowered, *, bits, pixels=None, **options):
    """Return the network in integers, in 8 bits where the proof refuses 16."""
    try:
        return lbq.to_fixed_point(lowered, bits=bits, pixels=pixels, **options)
    except BoundError:
        assert bits == 16
        return lbq.to_fixed_point(lowered, bits=8, pixels=pixels, **options)


def node_outputs(network, inputs):
    """Run a lowered network; return the output of every node by its path."""
    seen = {}

    def compute(node, *values):
        seen[node.path] = node.compute(*values)
        return seen[node.path]

    network(inputs, compute)
    return seen


class RandomNetwork(nn.Module):
    """A random graph of synapses and neurons over still images or frames.

    Args:
        seed: decides everything.
        for_integers: leave out what has no integer form (signed, split and mixing neurons).
    """

    def __init__(self, seed, *, for_integers=True):
        super().__init__()
        self._dice = random.Random(seed)
        torch.manual_seed(seed)
        dice = self._dice
        self.timesteps = dice.choice([1, 2, 3])
        self.takes_frames = dice.random() < 0.4
        self.channels, self.size = dice.choice([1, 2, 3]), dice.choice([6, 8, 9])
        self._kinds = list(_NEURONS) if not for_integers else list(_NEURONS)[:3]
        self.layers = nn.ModuleDict()
        self._program = []
        self._plan()
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2)
                module.weight.data.uniform_(-0.3, 1.5)
                module.bias.data.normal_(0, 0.3)
        self.eval()

    def inputs(self, batch=3):
        """Return random bytes that the network's integer form would take."""
        shape = (batch, self.channels, self.size, self.size)
        if self.takes_frames:
            shape = (self.timesteps, *shape)
        return torch.randint(0, 256, shape, dtype=torch.uint8)

    def _plan(self):
        dice = self._dice
        first = self._conv(self.channels, 4 * dice.choice([1, 2]), 3, 1, 1)
        if self.takes_frames:
            self._add("stem", OverTime(*first), 0)
        else:
            self._add("stem", nn.Sequential(*first, RepeatOverTime(self.timesteps)), 0)
        channels = first[0].out_channels
        self._add("n0", self._neuron(channels), -1)
        # values: index -> (channels, size, is a single term of levels)
        self._values = {len(self._program): (channels, self.size, True)}
        for number in range(dice.randint(2, 4)):
            dice.choice([self._block, self._block, self._pool, self._sum, self._concat])(number)
        last = max(self._values)
        channels, size, _ = self._values[last]
        pool = dice.choice([nn.AdaptiveAvgPool2d(1), nn.Identity()])
        features = channels * (1 if isinstance(pool, nn.AdaptiveAvgPool2d) else size * size)
        self._add("head", OverTime(pool, nn.Flatten(), nn.Linear(features, 5)), last)
        self._add("mean", MeanOverTime(), -1)
        self._forget_what_nobody_reads()

    def _forget_what_nobody_reads(self):
        read = {len(self._program)}
        for index in range(len(self._program), 0, -1):
            if index in read:
                read |= set(self._program[index - 1][1])
        kept = sorted(read)  # 0 is the input
        renamed = {old: new for new, old in enumerate(kept)}
        for index, (name, _) in enumerate(self._program, start=1):
            if index not in read:
                del self.layers[name]
        self._program = [
            (name, tuple(renamed[i] for i in inputs))
            for index, (name, inputs) in enumerate(self._program, start=1)
            if index in read
        ]

    def _add(self, name, module, *inputs):
        self.layers[name] = module
        here = len(self._program)
        self._program.append((name, tuple(here if i == -1 else i for i in inputs)))
        return here + 1

    def _conv(self, inputs, outputs, kernel, stride, groups, *, is_bare=False):
        dilation = self._dice.choice([1, 1, 2])
        conv = nn.Conv2d(
            inputs,
            outputs,
            kernel,
            stride,
            padding=0 if is_bare else dilation * (kernel // 2),
            dilation=1 if is_bare else dilation,
            groups=groups,
            bias=self._dice.random() < 0.5,
        )
        return (conv, nn.BatchNorm2d(outputs)) if self._dice.random() < 0.8 else (conv,)

    def _neuron(self, channels):
        kind = self._dice.choice(self._kinds)
        return _NEURONS[kind](self._dice, channels, self.timesteps)

    def _pick(self):
        index = self._dice.choice(list(self._values))
        return index, *self._values[index]

    def _block(self, number):
        dice = self._dice
        index, channels, size, _ = self._pick()
        stride = dice.choice([1, 1, 2]) if size > 4 else 1
        groups = dice.choice([1, 1, 2, channels]) if channels % 2 == 0 else 1
        if any(name.startswith("cat") for name, _ in self._program):
            groups = 1  # concatenated channels are not read in groups
        outputs = channels * dice.choice([1, 2]) if channels < 16 else channels
        kernel = dice.choice([1, 3])
        other = dice.choice(["none", "identity", "conv"])
        is_bare = kernel == 3 and other == "none" and size > 4 and dice.random() < 0.5
        conv = self._conv(channels, outputs, kernel, stride, groups, is_bare=is_bare)
        here = self._add(f"c{number}", OverTime(*conv), index)
        if (
            other == "identity"
            and outputs == channels
            and stride == 1
            and not self._is_joined(index)
        ):
            here = self._add(f"sum{number}", _Sum(), here, index)
        elif other == "conv":
            side = self._add(
                f"d{number}", OverTime(*self._conv(channels, outputs, 1, stride, 1)), index
            )
            here = self._add(f"sum{number}", _Sum(), here, side)
        after = self._add(f"n{number + 1}", self._neuron(outputs), here)
        size -= 2 * is_bare
        self._values[after] = (outputs, (size - 1) // stride + 1, True)

    def _is_joined(self, index):
        return self._program[index - 1][0].startswith("cat")

    def _pool(self, number):
        index, channels, size, is_single = self._pick()
        if size < 4:
            return
        kind = (
            self._dice.choice(["max", "avg"]) if is_single and not self._is_joined(index) else "avg"
        )
        pool = nn.MaxPool2d(3, 2, 1) if kind == "max" else nn.AvgPool2d(2)
        after = self._add(f"pool{number}", OverTime(pool), index)
        behind = (size - 1) // 2 + 1 if kind == "max" else size // 2
        self._values[after] = (channels, behind, kind == "max")

    def _sum(self, number):
        index, channels, size, _ = self._pick()
        alike = [i for i, v in self._values.items() if v[:2] == (channels, size) and i != index]
        if not alike:
            return
        after = self._add(f"plus{number}", _Sum(), index, self._dice.choice(alike))
        if any(self._is_joined(i) for i in self._program[after - 1][1]):
            self._program.pop()
            del self.layers[f"plus{number}"]
            return
        self._values[after] = (channels, size, False)

    def _concat(self, number):
        index, channels, size, _ = self._pick()
        other = self._dice.choice([i for i, v in self._values.items() if v[1] == size])
        after = self._add(f"cat{number}", _Concatenation(), index, other)
        self._values[after] = (channels + self._values[other][0], size, False)

    def forward(self, x):
        values = [x]
        for name, inputs in self._program:
            values.append(self.layers[name](*(values[i] for i in inputs)))
        return values[-1]


class _Sum(nn.Module):
    def forward(self, left, right):
        return left + right


class _Concatenation(nn.Module):
    def forward(self, left, right):
        return torch.cat([left, right], dim=2)


def _burst(dice, channels, timesteps):
    del timesteps
    step = dice.uniform(0.2, 0.8)
    return lbq.BurstLIF(
        dice.choice([1, 2, 3, 5, 7, 15, 255]),
        step=lbq.LearnedStep(step, channels=channels) if dice.random() < 0.4 else step,
        decay=dice.choice([0.0, 0.5, 0.37, 1.0]),
        reset=dice.choice([1.0, 0.5]),
        reset_mode=dice.choice(["event", "level", "none"]),
    )


_NEURONS = {
    "burst": _burst,
    "integer": lambda dice, c, t: neurons.IntegerLIF(dice.choice([2, 4])),
    "binary": lambda dice, c, t: neurons.BinaryLIF(threshold=dice.uniform(0.2, 1)),
    "ternary": lambda dice, c, t: neurons.TernaryLIF(step=dice.uniform(0.2, 0.8)),
    "original ternary": lambda dice, c, t: neurons.OriginalTernaryLIF(),
    "multilevel": lambda dice, c, t: neurons.MultiLevelLIF(),
    "lmht": lambda dice, c, t: neurons.LMHT(t),
}
