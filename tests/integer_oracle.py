"""Integer networks in numpy's int64, written to be clear: what every engine must give."""

import numpy as np

from lbq.deploy.operators import IntegerNeuron, Merge, Pool, Readout, Repeat, Shortcut, Synapse


def run_oracle(network, inputs):
    """Return what every node gives, as int64, by path; the answer is the last one."""
    values = {"input": inputs.numpy().astype(np.int64)}
    for place, node in network.nodes():
        values[place.path] = _node(node, [values[name] for name in place.inputs])
    return values


def _node(node, entering):
    x = entering[0]
    if isinstance(node, Synapse):
        return _over_time(lambda now: _synapse(node, now), x, still=not node.has_time)
    if isinstance(node, Shortcut):
        weight, bias = _int(node.weight), 0 if node.bias is None else _channels(_int(node.bias), x)
        return x * _channels(weight, x) + bias
    if isinstance(node, Merge):
        return sum(entering)
    if isinstance(node, Repeat):
        return np.stack([x] * node.timesteps)
    if isinstance(node, Pool):
        return _over_time(lambda now: _pool(node, now), x, still=not node.has_time)
    if isinstance(node, IntegerNeuron):
        return _neuron(node, x)
    assert isinstance(node, Readout)
    return x.sum(0) if node.over_time == "sum" else x


def _synapse(node, x):
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
    windows = _windows(x, node.kernel, node.stride, node.padding, (1, 1), fill=fill)
    return windows.max((-1, -2)) if node.kind == "max" else windows.sum((-1, -2))


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
    """Shape one value per channel for [B, C, *space] or [T, B, C, *space]... the last axes."""
    if values.size == 1:
        return values.reshape(())
    axis = next(a for a in range(1, like.ndim) if like.shape[a] == values.size)
    return values.reshape(-1, *[1] * (like.ndim - axis - 1))


def _int(tensor):
    return tensor.numpy().astype(np.int64)
