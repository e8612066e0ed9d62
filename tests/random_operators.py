"""Random operators and what they read: for tests of their shape rules and bound rules."""

import random
from dataclasses import replace

import torch

from lbq.graph.operators import (
    Concat,
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
    Value,
    ZeroPad,
)
from lbq.graph.operators.moves import Roll

TIMESTEPS = 3


def random_operator(seed):
    """Return an integer operator, and what it reads."""
    dice = random.Random(seed)
    make = dice.choice(MAKERS)
    return make(dice)


def numbers(dice, shape, low, high, dtype=torch.int32):
    """Return random integers."""
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    return torch.randint(low, high + 1, tuple(shape), generator=generator, dtype=dtype)


def random_inputs(dice, values, *, batch=2):
    """Return tensors of these values; the extremes are among them."""
    found = []
    for value in values:
        shape = (batch, *value.shape)
        shape = (TIMESTEPS, *shape) if value.has_time else shape
        high = 50 if value.max_level is None else value.max_level
        low = -50 if value.max_level is None else 0
        tensor = numbers(dice, shape, low, high)
        tensor[tensor > low + 0.9 * (high - low)] = high
        is_byte = value.max_level is not None and high < 256
        found.append(tensor.to(torch.uint8) if is_byte else tensor)
    return found


def a_shape(dice, rank=None):
    """Return channels and up to two other axes."""
    rank = rank or dice.randint(1, 3)
    return tuple(dice.randint(1, 6) for _ in range(rank))


def a_value(dice, shape=None, *, levels=None, has_time=None):
    """Return levels or currents."""
    levels = dice.random() < 0.6 if levels is None else levels
    has_time = dice.random() < 0.7 if has_time is None else has_time
    largest = dice.choice([1, 2, 5, 20, 255, 700]) if levels else None
    return Value(shape=shape or a_shape(dice), has_time=has_time, max_level=largest)


def _synapse(dice):
    rank = dice.randint(1, 3)
    value = a_value(dice, a_shape(dice, rank), levels=True)
    options = {"max_input": value.max_level, "has_time": value.has_time, "bits": 8}
    outputs = dice.randint(1, 6)
    if rank == 1 or dice.random() < 0.2:
        weight = numbers(dice, (outputs, value.size), -127, 127, torch.int8)
        return Synapse(weight, _bias(dice, (outputs,)), **options), [value]
    groups = dice.choice([g for g in range(1, 7) if value.shape[0] % g == 0])
    kernel = [dice.randint(1, 3) for _ in value.shape[1:]]
    dilation = tuple(dice.randint(1, 2) for _ in kernel)
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(r // 2 + (r % 2) for r in reach)
    stride = tuple(dice.randint(1, 3) for _ in kernel)
    shape = (outputs * groups, value.shape[0] // groups, *kernel)
    node = Synapse(
        numbers(dice, shape, -127, 127, torch.int8),
        None,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        **options,
    )
    made = node.infer([value], timesteps=TIMESTEPS)
    bias = _bias(dice, made.shape if dice.random() < 0.3 else made.shape[:1])
    return replace(node, bias=bias), [value]


def _bias(dice, shape):
    return numbers(dice, shape, -1000, 1000) if dice.random() < 0.6 else None


def _shortcut(dice):
    value = a_value(dice, levels=True)
    count = dice.choice([1, value.shape[0]])
    weight = numbers(dice, (count,), -3000, 3000, torch.int16)
    bias = _bias(dice, (dice.choice([1, value.shape[0]]),))
    return Shortcut(weight, bias, max_input=value.max_level, has_time=value.has_time), [value]


def _merge(dice):
    value = a_value(dice, levels=False)
    return Merge(), [value] * dice.randint(1, 3)


def _pool(dice):
    value = a_value(dice, a_shape(dice, dice.randint(2, 3)))
    kernel = tuple(dice.randint(1, n) for n in value.shape[1:])
    padding = tuple(dice.randint(0, k // 2) for k in kernel)
    stride = tuple(dice.randint(1, 3) for _ in kernel)
    kind = dice.choice(["max", "sum"])
    options = {"kernel": kernel, "stride": stride, "padding": padding}
    return Pool(kind, has_time=value.has_time, **options), [value]


def _repeat(dice):
    return Repeat(TIMESTEPS), [a_value(dice, levels=False, has_time=False)]


def _neuron(dice):
    value = a_value(dice, levels=False, has_time=True)
    count, channels = dice.randint(1, 5), dice.choice([1, value.shape[0]])
    thresholds = numbers(dice, (count, channels), 1, 60).cumsum(0).to(torch.int32)
    shift, reset = dice.randint(0, 8), dice.choice(["event", "level", "zero", "none"])
    node = IntegerNeuron(
        thresholds,
        multiplier=dice.randint(0, 2**shift),
        shift=shift,
        reset_amount=numbers(dice, (dice.choice([1, value.shape[0]]),), 0, 60),
        reset=reset,
        resets_after_decay=count == 1 and reset == "event" and dice.random() < 0.5,
    )
    return node, [value]


def _readout(dice):
    return Readout(dice.choice(["sum", "none"])), [a_value(dice, levels=False, has_time=True)]


def _concat(dice):
    first = a_value(dice)
    axis = dice.randrange(len(first.shape))
    values = [first]
    for _ in range(dice.randint(1, 3)):
        shape = (*first.shape[:axis], dice.randint(1, 4), *first.shape[axis + 1 :])
        levels = first.max_level is not None
        values.append(a_value(dice, shape, levels=levels, has_time=first.has_time))
    return Concat(axis=axis, has_time=first.has_time), values


def _slice(dice):
    value = a_value(dice)
    axis = dice.randrange(len(value.shape))
    start = dice.randrange(value.shape[axis])
    stop = dice.randint(start + 1, value.shape[axis])
    step = dice.randint(1, 3)
    return Slice(axis=axis, start=start, stop=stop, step=step, has_time=value.has_time), [value]


def _rearrange(dice):
    sizes = tuple(dice.randint(1, 4) for _ in range(dice.randint(1, 5)))
    order = tuple(dice.sample(range(len(sizes)), len(sizes)))
    value = a_value(dice, _grouped(dice, sizes))
    shape = _grouped(dice, [sizes[axis] for axis in order])
    return Rearrange(sizes=sizes, order=order, shape=shape, has_time=value.has_time), [value]


def _grouped(dice, sizes):
    """Merge neighbouring factors into at most three axes."""
    cuts = sorted(dice.sample(range(1, len(sizes)), min(len(sizes) - 1, dice.randint(0, 2))))
    shape = []
    for start, stop in zip([0, *cuts], [*cuts, len(sizes)], strict=True):
        shape.append(int(torch.tensor(sizes[start:stop]).prod()))
    return tuple(shape)


def _upsample(dice):
    value = a_value(dice, a_shape(dice, dice.randint(2, 3)))
    factors = tuple(dice.randint(1, 3) for _ in value.shape[1:])
    fill = dice.choice(["nearest", "zeros"])
    return Upsample(factors=factors, fill=fill, has_time=value.has_time), [value]


def _roll(dice):
    value = a_value(dice, a_shape(dice, dice.randint(1, 3)))
    axis = dice.randrange(len(value.shape))
    start, step = dice.randrange(value.shape[axis]), dice.choice([1, -1])
    return Roll(axis=axis, start=start, step=step, has_time=value.has_time), [value]


def _zero_pad(dice):
    value = a_value(dice, a_shape(dice, dice.randint(2, 3)))
    before, after = (tuple(dice.randint(0, 2) for _ in value.shape[1:]) for _ in range(2))
    return ZeroPad(before=before, after=after, has_time=value.has_time), [value]


def _offset(dice):
    value = a_value(dice, levels=False)
    shape = tuple(n if dice.random() < 0.6 else 1 for n in value.shape)
    return Offset(numbers(dice, shape, -900, 900)), [value]


def _multiply(dice):
    shape, has_time = a_shape(dice), dice.random() < 0.7
    shapes = [tuple(n if dice.random() < 0.8 else 1 for n in shape) for _ in range(2)]
    return Multiply(), [a_value(dice, s, levels=True, has_time=has_time) for s in shapes]


def _matmul(dice):
    groups, rows, inner, columns = (dice.randint(1, 5) for _ in range(4))
    shapes, has_time = [(groups, rows, inner), (groups, inner, columns)], dice.random() < 0.7
    return Matmul(), [a_value(dice, s, levels=True, has_time=has_time) for s in shapes]


MAKERS = (
    *(_synapse, _shortcut, _merge, _pool, _repeat, _neuron, _readout, _concat, _slice),
    *(_rearrange, _upsample, _zero_pad, _offset, _multiply, _matmul, _roll),
)
