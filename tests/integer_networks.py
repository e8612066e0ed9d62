"""Random integer networks over the whole set of operators, several outputs among them."""

import random

import torch
from random_operators import numbers

from lbq.errors import BoundError
from lbq.graph import prove
from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.operators import (
    Concat,
    GraphError,
    IntegerNeuron,
    Matmul,
    Merge,
    Multiply,
    Offset,
    Pool,
    Readout,
    Rearrange,
    Repeat,
    Shortcut,
    Slice,
    Synapse,
    Upsample,
    ZeroPad,
)
from lbq.graph.operators.moves import Roll

_MOST_VALUES = 3000
_MOST_OF_LEVELS = 2**16


def integer_network(seed, *, steps=12):
    """Return a network that is proven not to overflow; ``seed`` decides everything."""
    dice = random.Random(seed)
    while True:
        network = _Draft(dice, steps).graph.finish()
        try:
            prove(network)
        except BoundError:  # a sum of sums of sums
            continue
        return network


def random_bytes(network, seed, *, batch=3):
    """Return inputs of a network, a third of them zero."""
    shape = network.example(batch).shape
    inputs = numbers(random.Random(seed), shape, -127, 255, torch.int16)
    return inputs.clamp(min=0).to(torch.uint8)


class _Draft:
    def __init__(self, dice, steps):
        self.dice = dice
        self.graph = GraphBuilder(
            timesteps=dice.randint(1, 3),
            input_shape=tuple(dice.randint(1, 7) for _ in range(dice.choice([1, 2, 3, 3]))),
            takes_frames=dice.random() < 0.5,
            logit_scale=0.5,
        )
        self.values = dict(self.graph.finish().values())
        stem = self.shortcut(INPUT)
        if not self.graph.takes_frames:
            stem = self.add(Repeat(self.graph.timesteps), stem)
        self.neuron(stem)
        while len(self.graph.nodes) < steps:
            dice.choice(_MAKERS)(self)
        self._end()

    def add(self, node, *inputs):
        """Append a node, unless its values would be too many or too large."""
        try:
            entering = [self.values[path] for path in inputs]
            value = node.infer(entering, timesteps=self.graph.timesteps)
        except GraphError as error:
            if error.rule != "max-level":  # products beyond 32 bits
                raise
            return None
        if value.size > _MOST_VALUES or (value.max_level or 0) > _MOST_OF_LEVELS:
            return None
        path = self.graph.add(f"{node.op}{len(self.graph.nodes)}", node, *inputs)
        self.values[path] = value
        return path

    def pick(self, condition=lambda value: True):
        """Return a path and its value, mostly a late one; (None, None) if there is none."""
        found = [path for path, value in self.values.items() if condition(value)]
        if not found:
            return None, None
        path = self.dice.choice(found[-3:] if self.dice.random() < 0.7 else found)
        return path, self.values[path]

    def numbers(self, shape, largest, dtype=torch.int32):
        return numbers(self.dice, shape, -largest, largest, dtype)

    def synapse(self):
        path, value = self.pick(_are_levels)
        if path is None:
            return
        bits, dtype = self.dice.choice([(4, torch.int8), (8, torch.int8), (16, torch.int16)])
        largest, outputs = 2 ** (bits - 1) - 1, self.dice.choice([1, 2, 5, 33])
        options = {"max_input": value.max_level, "has_time": value.has_time, "bits": bits}
        if len(value.shape) == 1 or self.dice.random() < 0.2:
            weight = self.numbers((outputs, value.size), largest, dtype)
        else:
            groups = self.dice.choice(
                [g for g in (1, 2, value.shape[0]) if value.shape[0] % g == 0]
            )
            kernel = tuple(self.dice.randint(1, min(3, n)) for n in value.shape[1:])
            options |= {
                "groups": groups,
                "stride": tuple(self.dice.randint(1, 2) for _ in kernel),
                "padding": tuple(self.dice.randint(k // 2, k) for k in kernel),
                "dilation": tuple(self.dice.randint(1, 2) for _ in kernel),
            }
            weight = self.numbers(
                (groups * outputs, value.shape[0] // groups, *kernel), largest, dtype
            )
        node = Synapse(weight, None, **options)
        shape = node.infer([value], timesteps=self.graph.timesteps).shape
        shape = self.dice.choice([None, shape[:1], shape])
        bias = None if shape is None else self.numbers(shape, 1000)
        self.add(Synapse(weight, bias, **options), path)

    def shortcut(self, path=None):
        path, value = (path, self.values[path]) if path else self.pick(_are_levels)
        if path is None:
            return None
        weight = self.numbers((self.dice.choice([1, value.shape[0]]),), 300, torch.int16)
        bias = self.dice.choice([None, self.numbers(value.shape[:1], 50)])
        node = Shortcut(weight, bias, max_input=value.max_level, has_time=value.has_time)
        return self.add(node, path)

    def merge(self):
        path, value = self.pick(_are_currents)
        if path is not None:
            others = [p for p, v in self.values.items() if v == value]
            self.add(Merge(), path, *self.dice.choices(others, k=self.dice.randint(0, 2)))

    def pool(self):
        path, value = self.pick(lambda value: len(value.shape) > 1)
        if path is not None:
            kernel = tuple(self.dice.randint(1, min(3, n)) for n in value.shape[1:])
            padding = tuple(self.dice.randint(0, k // 2) for k in kernel)
            stride = tuple(self.dice.randint(1, 2) for _ in kernel)
            kind = self.dice.choice(["max", "sum"])
            windows = {"kernel": kernel, "stride": stride, "padding": padding}
            self.add(Pool(kind, has_time=value.has_time, **windows), path)

    def repeat(self):
        path, _ = self.pick(lambda value: _are_currents(value) and not value.has_time)
        if path is not None:
            self.add(Repeat(self.graph.timesteps), path)

    def neuron(self, path=None):
        if path is None:
            path, _ = self.pick(lambda value: _are_currents(value) and value.has_time)
        if path is None:
            return
        value = self.values[path]
        count, channels = self.dice.choice([1, 2, 5]), self.dice.choice([1, value.shape[0]])
        step = self.dice.choice([30, 3000])
        shift, reset = self.dice.randint(0, 8), self.dice.choice(["event", "level", "zero", "none"])
        node = IntegerNeuron(
            numbers(self.dice, (count, channels), 1, step).cumsum(0).to(torch.int32),
            multiplier=self.dice.randint(0, 2**shift),
            shift=shift,
            reset_amount=numbers(self.dice, (self.dice.choice([1, value.shape[0]]),), 0, step),
            reset=reset,
            resets_after_decay=count == 1 and reset == "event" and self.dice.random() < 0.5,
        )
        self.add(node, path)

    def concat(self):
        path, value = self.pick()
        axis = self.dice.randrange(len(value.shape))

        def fits(other):
            rest = (*other.shape[:axis], *other.shape[axis + 1 :])
            return (
                (other.has_time, _are_levels(other)) == (value.has_time, _are_levels(value))
                and len(other.shape) == len(value.shape)
                and rest == (*value.shape[:axis], *value.shape[axis + 1 :])
            )

        others = [p for p, v in self.values.items() if fits(v)]
        inputs = [path, *self.dice.choices(others, k=self.dice.randint(1, 2))]
        self.add(Concat(axis=axis, has_time=value.has_time), *inputs)

    def slice(self):
        path, value = self.pick()
        axis = self.dice.randrange(len(value.shape))
        start = self.dice.randrange(value.shape[axis])
        stop = self.dice.randint(start + 1, value.shape[axis])
        step = self.dice.randint(1, 2)
        self.add(Slice(axis=axis, start=start, stop=stop, step=step, has_time=value.has_time), path)

    def rearrange(self):
        path, value = self.pick()
        sizes = []
        for size in value.shape:
            divisor = next((d for d in (2, 3) if size % d == 0), 1)
            sizes += [divisor, size // divisor]
        order = self.dice.sample(range(len(sizes)), len(sizes))
        rank, shape = self.dice.randint(1, 3), [1, 1, 1]
        for place, axis in enumerate(order):
            shape[place * rank // len(order)] *= sizes[axis]
        shape = tuple(shape[:rank])
        self.add(
            Rearrange(sizes=tuple(sizes), order=tuple(order), shape=shape, has_time=value.has_time),
            path,
        )

    def roll(self):
        path, value = self.pick()
        axis = self.dice.randrange(len(value.shape))
        start, step = self.dice.randrange(value.shape[axis]), self.dice.choice([1, -1])
        self.add(Roll(axis=axis, start=start, step=step, has_time=value.has_time), path)

    def upsample(self):
        path, value = self.pick(lambda value: len(value.shape) > 1)
        if path is not None:
            factors = tuple(self.dice.randint(1, 3) for _ in value.shape[1:])
            fill = self.dice.choice(["nearest", "zeros"])
            self.add(Upsample(factors=factors, fill=fill, has_time=value.has_time), path)

    def zero_pad(self):
        path, value = self.pick(lambda value: len(value.shape) > 1)
        if path is not None:
            sides = [tuple(self.dice.randint(0, 2) for _ in value.shape[1:]) for _ in range(2)]
            self.add(ZeroPad(before=sides[0], after=sides[1], has_time=value.has_time), path)

    def offset(self):
        path, value = self.pick(_are_currents)
        if path is not None:
            shape = [self.dice.choice([1, n]) for n in value.shape]
            self.add(Offset(self.numbers(shape, 900)), path)

    def multiply(self):
        path, value = self.pick(_are_levels)
        if path is None:
            return
        axis = self.dice.randrange(len(value.shape))
        part = Slice(axis=axis, start=0, stop=1, has_time=value.has_time)
        other = self.add(part, path) if self.dice.random() < 0.5 else path
        self.add(Multiply(), *self.dice.sample([path, other], 2))

    def matmul(self):
        path, value = self.pick(lambda value: _are_levels(value) and len(value.shape) == 3)
        if path is None:
            return
        channels, rows, columns = value.shape
        turn = Rearrange(
            sizes=value.shape,
            order=(0, 2, 1),
            shape=(channels, columns, rows),
            has_time=value.has_time,
        )
        other = self.add(turn, path)
        self.add(Matmul(), *self.dice.sample([path, other], 2))

    def _end(self):
        """Make an output of everything that nothing reads."""
        over_time = self.dice.choice(["sum", "none"])
        read = {name for node in self.graph.nodes for name in node.inputs}
        for path in [node.path for node in self.graph.nodes if node.path not in read]:
            last = self.shortcut(path) if _are_levels(self.values[path]) else path
            if not self.values[last].has_time:
                last = self.add(Repeat(self.graph.timesteps), last)
            self.add(Readout(over_time), last)


def _are_levels(value):
    return value.max_level is not None


def _are_currents(value):
    return value.max_level is None


_MAKERS = (
    *(_Draft.synapse, _Draft.synapse, _Draft.shortcut, _Draft.merge, _Draft.pool, _Draft.repeat),
    *(_Draft.neuron, _Draft.neuron, _Draft.neuron, _Draft.concat, _Draft.slice, _Draft.rearrange),
    *(_Draft.upsample, _Draft.zero_pad, _Draft.offset, _Draft.multiply, _Draft.matmul),
    *(_Draft.roll,),
)
