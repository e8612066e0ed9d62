"""Lower convolutions, linear layers and batch norms."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lbq.errors import LoweringError
from lbq.graph.capture import Call, Constant
from lbq.graph.layout import CHANNELS, Factor, Layout
from lbq.graph.operators import Offset, Shortcut, Upsample, ZeroPad
from lbq.lowering.context import Context, Handler
from lbq.lowering.values import PendingSynapse, Symbolic, SymbolicValue, along_channels


def convolve(context: Context, call: Call) -> PendingSynapse:
    """Lower a convolution over one or two axes."""
    if call.arguments.get("transposed"):
        return convolve_transposed(context, call)
    weight, given = context.constant(call, "weight"), call.arguments
    axes = _check_axes(context, call, weight)
    geometry = {name: _per_axis(given[name], axes) for name in ("stride", "padding", "dilation")}
    if isinstance(given["padding"], str):
        geometry["padding"] = _padding(context, call, weight.shape[2:], geometry["dilation"])
    made = {**geometry, "groups": given["groups"]}
    bias = context.optional(call, "bias")
    before = context.pending(context.source(call, "input"))
    if before is not None:
        composed = _compose(before, weight, bias, made, call)
        if composed is not None:
            return replace(composed, path=context.path(call, "conv"))
    source = context.signal_of(context.source(call, "input"), repeat=False)
    signal = context.as_axes(call, source, 1)
    return _convolution(context, call, signal, weight, bias, made)


def convolve_transposed(context: Context, call: Call) -> PendingSynapse:
    """Lower a transposed convolution: put zeros between the inputs and flip the weights."""
    weight, given = context.constant(call, "weight"), call.arguments
    axes, groups = _check_axes(context, call, weight), given["groups"]
    stride, padding, dilation, more = (
        _per_axis(given[name], axes) for name in ("stride", "padding", "dilation", "output_padding")
    )
    kernel = weight.shape[2:]
    around = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    if min(around) < 0:
        context.refuse(call, f"its padding {padding} exceeds its kernel {tuple(kernel)}")
    signal = context.as_axes(call, context.signal(call, "input"), 1)
    prefix, has_time = context.prefix(call), signal.has_time
    if max(stride) > 1:
        channels, *space = signal.layout.node
        node = (channels, *((n - 1) * s + 1 for n, s in zip(space, stride, strict=True)))
        signal = context.moved(
            signal,
            f"{prefix}upsample",
            lambda: Upsample(factors=stride, fill="zeros", has_time=has_time),
            signal.layout.with_node(node, first=1),
        )
    if any(more):
        after = tuple(p + m for p, m in zip(around, more, strict=True))
        channels, *space = signal.layout.node
        node = (channels, *(n + p + q for n, p, q in zip(space, around, after, strict=True)))
        before, around = tuple(around), [0] * axes
        signal = context.moved(
            signal,
            f"{prefix}pad",
            lambda: ZeroPad(before=before, after=after, has_time=has_time),
            signal.layout.with_node(node, first=1),
        )
    parts = [part.transpose(0, 1) for part in weight.chunk(groups)]  # [out / groups, in / groups]
    flipped = torch.cat(parts).flip(tuple(range(2, weight.dim())))
    geometry = {
        "stride": (1,) * axes,
        "padding": tuple(around),
        "dilation": dilation,
        "groups": groups,
    }
    bias = context.optional(call, "bias")
    return _convolution(context, call, signal, flipped, bias, geometry)


def multiply(context: Context, call: Call) -> PendingSynapse:
    """Lower a linear layer."""
    source = context.source(call, "input")
    bias = context.optional(call, "bias")
    return linear(context, call, source, context.constant(call, "weight"), bias)


def multiply_matrix(context: Context, call: Call) -> PendingSynapse:
    """Lower a linear layer written as torch.addmm, ``bias + x @ matrix``."""
    given = call.arguments
    if not isinstance(given["mat2"], Constant) or (given["beta"], given["alpha"]) != (1, 1):
        context.refuse(call, "it does not multiply by a constant matrix")
    matrix, bias = context.constant(call, "mat2"), context.constant(call, "self")
    return linear(context, call, context.source(call, "mat1"), matrix.t(), bias)


def linear(
    context: Context, call: Call, source: Call, weight: Tensor, bias: Tensor | None
) -> PendingSynapse:
    """Multiply the last axis, features or the channels of tokens, by a matrix, ``[out, in]``."""
    path = context.path(call, "linear")
    before = context.pending(source)
    last = len(source.shape) - 1
    if before is not None and before.layout.is_whole(last) and (bias is None or before.takes_bias):
        layout = before.layout.resized(last, len(weight))
        return replace(_compose_pointwise(before, weight, bias), path=path, layout=layout)
    signal = context.signal_of(source, repeat=False)
    layout = signal.layout
    if any(factor.axis < 0 for factor in layout.axes[last]):
        context.refuse(call, "it multiplies along the batch or along time")
    if not layout.content(*range(last)):
        index = layout.to_node(torch.arange(layout.shape[last]).reshape(_own_shape(layout)))
        features = Layout((*layout.axes[:-1], (Factor(CHANNELS, len(weight)),)), (len(weight),))
        features = features if len(weight) > 1 else features.resized(last, 1)
        return PendingSynapse(
            path=path, inputs=signal, weight=weight[:, index.flatten()], bias=bias, layout=features
        )
    signal = context.channels_first(call, signal, last)
    axes = len(signal.layout.node) - 1
    ones, zeros = (1,) * axes, (0,) * axes
    return PendingSynapse(
        path=path,
        inputs=signal,
        weight=weight.reshape(*weight.shape, *ones),
        bias=bias,
        layout=signal.layout.resized(last, len(weight)),
        geometry={"stride": ones, "padding": zeros, "dilation": ones, "groups": 1},
    )


def normalise(context: Context, call: Call) -> Symbolic:
    """Fold a batch norm into the synapse before it, or lower it to one weight per channel."""
    given = call.arguments
    if given["running_mean"] is None or given.get("training"):
        raise LoweringError(
            f"{call.place} has no running statistics, so its output depends on the batch; "
            f"train it with track_running_stats=True"
        )
    variance, mean = context.constant(call, "running_var"), context.constant(call, "running_mean")
    weight, bias = context.optional(call, "weight"), context.optional(call, "bias")
    gain = (variance + given["eps"]).rsqrt()
    gain = gain if weight is None else gain * weight
    offset = -mean * gain
    offset = offset if bias is None else offset + bias
    source = context.source(call, "input")
    pending = context.pending(source)
    if pending and pending.layout.is_whole(1) and pending.takes_bias:
        return pending.folded(gain, offset)
    signal = context.channels_first(call, context.signal_of(source), 1)
    signal = context.whole(signal, context.prefix(call))
    term, *others = signal.terms
    if others:
        currents = context.currents(signal.scaled(gain), context.prefix(call))
        node = Offset(context.to_dtype(along_channels(offset, torch.empty(signal.layout.node))))
        path = context.add(context.path(call, "norm"), node, currents.source)
        return context.given(path, signal.layout)
    node = Shortcut(
        context.to_dtype(term.scale * gain),
        context.to_dtype(offset),
        max_input=term.max_size,
        has_time=signal.has_time,
    )
    return context.given(context.add(context.path(call, "norm"), node, term.source), signal.layout)


def as_linear(context: Context, pending: PendingSynapse, layout: Layout) -> PendingSynapse | None:
    """Return the linear layer equivalent to a convolution followed by a flatten, else None.

    There is one if the kernel covers the whole input, or for a 1x1 convolution followed by a global
    average. In the second case the levels are summed before the linear layer.

    Args:
        context: receives the pools.
        pending: the convolution.
        layout: layout behind the flatten.
    """
    signal, kernel = pending.inputs, tuple(pending.weight.shape[2:])
    entering, plain = signal.layout.node[1:], {"groups": 1}
    plain |= {"padding": (0,) * len(kernel), "dilation": (1,) * len(kernel)}
    if any(pending.geometry.get(name) != value for name, value in plain.items()):
        return None
    channels = len(pending.weight)
    features = Layout(layout.axes, (channels,))
    made = replace(pending, weight=pending.weight.flatten(1), layout=features, geometry={})
    if not pending.pools and entering == kernel:
        return made
    if len(pending.pools) != 1 or set(kernel) != {1} or not signal.are_levels:
        return None
    ((path, window),) = pending.pools
    if set(pending.geometry["stride"]) != {1} or window.kernel != entering:
        return None
    size, node = math.prod(window.kernel), (signal.layout.node[0], *(1,) * len(kernel))
    terms = [
        replace(
            term,
            source=context.add_pool(path, window, term.source, signal),
            shape=(term.shape[0], *node[1:]),
            max_size=(term.max_size or 0) * size,
        )
        for term in signal.terms
    ]
    pooled = replace(signal, terms=tuple(terms), layout=signal.layout.with_node(node, first=1))
    bias = None if pending.bias is None else pending.bias * size
    return replace(made, inputs=pooled, bias=bias, pools=())


def _convolution(
    context: Context,
    call: Call,
    signal: SymbolicValue,
    weight: Tensor,
    bias: Tensor | None,
    geometry: dict[str, Any],
) -> PendingSynapse:
    return PendingSynapse(
        path=context.path(call, "conv"),
        inputs=signal,
        weight=weight,
        bias=bias,
        layout=signal.layout.with_node(call.shape[1:], first=1),
        geometry=geometry,
    )


def _compose(
    before: PendingSynapse,
    weight: Tensor,
    bias: Tensor | None,
    geometry: dict[str, Any],
    call: Call,
) -> PendingSynapse | None:
    """Return one convolution for two in a row, if one of them has a 1x1 kernel."""
    layout = before.layout
    if not before.geometry or layout != layout.with_node(layout.node, first=1):
        return None
    dense = _dense(weight, geometry["groups"])
    after = layout.with_node(call.shape[1:], first=1)
    if _is_pointwise(weight, geometry) and (bias is None or before.takes_bias):
        return replace(_compose_pointwise(before, dense.flatten(1), bias), layout=after)
    around = before.geometry["padding"]
    is_padded = any(around) and not any(geometry["padding"])
    inner = {**before.geometry, "padding": geometry["padding"]} if is_padded else before.geometry
    if before.pools or not _is_pointwise(before.weight, inner):
        return None
    if is_padded:  # the padding of the first is the padding of both
        geometry = {**geometry, "padding": around}
    first = _dense(before.weight, before.geometry["groups"]).flatten(1)
    composed = torch.einsum("om...,mi->oi...", dense, first)
    if before.bias is not None and is_padded:
        added = torch.einsum("om...,m->o", dense, before.bias)
        bias = added if bias is None else added + bias
    elif before.bias is not None:  # the padding lacks the bias, so borders differ
        shape = (1, -1, *[1] * (len(layout.node) - 1))
        constant = before.bias.reshape(shape) if before.bias.dim() == 1 else before.bias[None]
        plain = {name: geometry[name] for name in ("stride", "padding", "dilation")}
        apply = F.conv1d if weight.dim() == 3 else F.conv2d
        added = apply(constant.expand(1, *layout.node), dense, **plain)[0]
        bias = added if bias is None else added + along_channels(bias, added)
        flat = bias.flatten(1)
        if bool((flat == flat[:, :1]).all()) or not any(plain["padding"]):
            bias = flat[:, 0]
    return replace(
        before, weight=composed, bias=bias, geometry={**geometry, "groups": 1}, layout=after
    )


def _compose_pointwise(
    before: PendingSynapse, weight: Tensor, bias: Tensor | None
) -> PendingSynapse:
    """Return one synapse for a synapse followed by a matrix, ``[out, in]``, over its channels."""
    groups = before.geometry.get("groups", 1)
    composed = torch.einsum("om,mi...->oi...", weight, _dense(before.weight, groups))
    inner = None if before.bias is None else torch.einsum("om,m...->o...", weight, before.bias)
    geometry = {**before.geometry, "groups": 1} if before.geometry else {}
    made = replace(before, weight=composed, bias=inner, geometry=geometry)
    return made if bias is None else made.folded(torch.ones(1).double(), bias)


def _dense(weight: Tensor, groups: int) -> Tensor:
    """Return grouped weights as the weights of one group."""
    if groups == 1:
        return weight
    inputs, outputs = weight.shape[1], len(weight) // groups
    dense = weight.new_zeros(len(weight), inputs * groups, *weight.shape[2:])
    for group in range(groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        dense[rows, group * inputs : (group + 1) * inputs] = weight[rows]
    return dense


def _is_pointwise(weight: Tensor, geometry: dict[str, Any]) -> bool:
    sizes = {*weight.shape[2:], *geometry["stride"]}
    return sizes == {1} and not any(geometry["padding"])


def _own_shape(layout: Layout) -> list[int]:
    """Return the lengths of the axes that are neither time nor batch."""
    axes = zip(layout.axes, layout.shape, strict=True)
    return [n for axis, n in axes if not axis or axis[0].axis >= 0]


def _check_axes(context: Context, call: Call, weight: Tensor) -> int:
    """Return the number of spatial axes; raise unless it is one or two, with a batch."""
    axes = weight.dim() - 2
    if axes not in (1, 2) or len(call.shape) != axes + 2:
        context.refuse(
            call,
            f"its output is {list(call.shape)}; only convolutions of [B, C, L] and [B, C, H, W] "
            f"are supported",
        )
    return axes


def _per_axis(value: int | Sequence[int] | str, axes: int) -> tuple[int, ...]:
    if isinstance(value, str):
        return (0,) * axes
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * axes if len(given) == 1 else given


def _padding(
    context: Context, call: Call, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding in numbers, also for "same" and "valid"."""
    if call.arguments["padding"] == "valid":
        return (0,) * len(kernel)
    sizes = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(size % 2 for size in sizes):
        context.refuse(call, "its padding is asymmetric; use an odd kernel")
    return tuple(size // 2 for size in sizes)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("aten.conv1d", "aten.conv2d", "aten.convolution"), convolve),
    **dict.fromkeys(("aten.conv_transpose1d", "aten.conv_transpose2d"), convolve_transposed),
    "aten.linear": multiply,
    "aten.addmm": multiply_matrix,
    **dict.fromkeys(("aten.batch_norm", "aten._native_batch_norm_legit_no_training"), normalise),
}
