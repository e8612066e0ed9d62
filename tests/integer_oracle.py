"""Integer networks in numpy's int64, written to be clear: what every engine must give."""

import numpy as np

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
    ZeroPad,
)
from lbq.graph.operators.moves import Roll


def run_oracle(network, inputs):
    """Return what every node gives, as int64, by path; readouts are the answers."""
    values = {"input": inputs.numpy().astype(np.int64)}
    for path, operator, inputs in network.nodes:
        values[path] = _node(operator, [values[name] for name in inputs])
    return values


def _node(node, entering):
    x = entering[0]
    if isinstance(node, Synapse):
        return _over_time(lambda now: _synapse(node, now), x, still=not node.has_time)
    if isinstance(node, Shortcut):
        return _over_time(lambda now: _shortcut(node, now), x, still=not node.has_time)
    if isinstance(node, Merge):
        return sum(entering)
    if isinstance(node, Repeat):
        return np.stack([x] * node.timesteps)
    if isinstance(node, Pool):
        return _over_time(lambda now: _pool(node, now), x, still=not node.has_time)
    if isinstance(node, IntegerNeuron):
        return _neuron(node, x)
    if isinstance(node, Offset):
        return x + _int(node.bias)
    if isinstance(node, Multiply):
        return x * entering[1]
    if isinstance(node, Matmul):
        return np.einsum("...mk,...kn->...mn", *entering)
    if isinstance(node, Concat):
        return np.concatenate(entering, axis=node.axis - _rank(node, x))
    if isinstance(node, Slice | Roll | Rearrange | Upsample | ZeroPad):
        return _over_time(lambda now: _moved(node, now), x, still=not node.has_time)
    assert isinstance(node, Readout)
    return x.sum(0) if node.over_time == "sum" else x


def _rank(node, x):
    """Return the number of axes of one sample at one timestep."""
    return x.ndim - (2 if node.has_time else 1)


def _moved(node, x):
    """Move the values of ``[B, *shape]``."""
    if isinstance(node, Slice):
        return np.take(x, range(node.start, node.stop, node.step), axis=1 + node.axis)
    if isinstance(node, Roll):
        size = x.shape[1 + node.axis]
        places = [(node.start + node.step * place) % size for place in range(size)]
        return np.take(x, places, axis=1 + node.axis)
    if isinstance(node, Rearrange):
        order = (0, *(1 + axis for axis in node.order))
        return x.reshape(len(x), *node.sizes).transpose(order).reshape(len(x), *node.shape)
    if isinstance(node, ZeroPad):
        pads = list(zip(node.before, node.after, strict=True))
        return np.pad(x, [(0, 0), (0, 0), *pads])
    for axis, factor in enumerate(node.factors, start=2):
        x = np.repeat(x, factor, axis=axis)
        if node.fill == "zeros":
            kept = np.arange(x.shape[axis]) % factor == 0
            x = x * kept.reshape(-1, *[1] * (x.ndim - axis - 1))
            x = np.take(x, range(x.shape[axis] - factor + 1), axis=axis)
    return x


def _shortcut(node, x):
    bias = 0 if node.bias is None else _channels(_int(node.bias), x)
    return x * _channels(_int(node.weight), x) + bias


def _synapse(node, x):
    weight = _int(node.weight)
    if weight.ndim == 3:  # along one axis: maps of width 1
        wide = _WideSynapse(node, weight[..., None])
        return _convolved(wide, x[..., None])[..., 0]
    return _convolved(node, x)


class _WideSynapse:
    """A convolution along one axis as one over maps of width 1."""

    def __init__(self, node, weight):
        self.weight, self.groups, self.is_linear = weight, node.groups, False
        self.stride, self.dilation = (*node.stride, 1), (*node.dilation, 1)
        self.padding = (*node.padding, 0)
        bias = None if node.bias is None else _int(node.bias)
        self.bias = bias if bias is None or bias.ndim == 1 else bias[..., None]


def _convolved(node, x):
    weight = _int(node.weight)
    if node.is_linear:
        out = x.reshape(len(x), -1) @ weight.T
        return out if node.bias is None else out + _int(node.bias)
    windows = _windows(x, weight.shape[2:], node.stride, node.padding, node.dilation)
    parts = []
    for group, some in zip(
        np.split(windows, node.groups, axis=1), np.split(weight, node.groups), strict=True
    ):
        parts.append(np.einsum("bchwij,ocij->bohw", group, some))
    out = np.concatenate(parts, axis=1)
    if node.bias is None:
        return out
    bias = _int(node.bias)
    return out + (bias if bias.ndim == 3 else bias[:, None, None])


def _pool(node, x):
    fill = -(2**40) if node.kind == "max" else 0
    is_map = len(node.kernel) == 2
    sizes = (node.kernel, node.stride, node.padding)
    kernel, stride, padding = (
        sizes if is_map else ((*n, d) for n, d in zip(sizes, (1, 1, 0), strict=True))
    )
    windows = _windows(x if is_map else x[..., None], kernel, stride, padding, (1, 1), fill=fill)
    pooled = windows.max((-1, -2)) if node.kind == "max" else windows.sum((-1, -2))
    return pooled if is_map else pooled[..., 0]


def _windows(x, kernel, stride, padding, dilation, fill=0):
    pads = ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2)
    padded = np.pad(x, pads, constant_values=fill)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(2, 3))
    return windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _neuron(node, currents):
    thresholds, reset_amount = _int(node.thresholds), _int(node.reset_amount)
    carry, levels = np.zeros_like(currents[0]), []
    for current in currents:
        membrane = (carry * node.multiplier >> node.shift) + current
        if node.resets_after_decay:
            membrane = membrane - _channels(reset_amount, carry) * (
                carry >= _channels(thresholds[0], carry)
            )
        level = sum(
            (membrane >= _channels(threshold, membrane)).astype(np.int64)
            for threshold in thresholds
        )
        levels.append(level)
        units = {"event": level > 0, "level": level}.get(node.reset, 0 * level)
        carry = membrane
        if not node.resets_after_decay:
            carry = membrane - _channels(reset_amount, level) * units
            if node.reset == "zero":
                carry = np.where(level > 0, 0, carry)
    return np.stack(levels)


def _over_time(apply, x, *, still):
    if still:
        return apply(x)
    return np.stack([apply(now) for now in x])


def _channels(values, like):
    """Shape one value per channel for [B, C, *space]."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape(-1, *[1] * (like.ndim - 2))


def _int(tensor):
    return np.asarray(tensor).astype(np.int64)
