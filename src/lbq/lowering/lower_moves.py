"""Lower operators that move values: reshapes, parts, concatenations, padding, upsampling."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lbq.graph.capture import Call
from lbq.graph.layout import CHANNELS, Factor, Layout, LayoutError
from lbq.graph.operators import Slice, Upsample, ZeroPad
from lbq.graph.operators.moves import Roll
from lbq.lowering.context import REPEAT, Context, Handler
from lbq.lowering.lower_sequence import repeat, same_value
from lbq.lowering.lower_synapses import as_linear
from lbq.lowering.values import PendingSynapse, ScaledInput, Symbolic, SymbolicValue

_PARTS = (
    "it selects timesteps or samples; apply layers to all timesteps at once with lbq.OverTime, and "
    "average over time behind the classifier"
)


def view(context: Context, call: Call) -> Symbolic:
    """Lower a reshape of any kind, such as flatten or unsqueeze."""
    source = context.source(call, "self")
    value = context.symbolic(source)
    try:
        return viewed(context, value, value.layout.reshaped(call.shape))
    except LayoutError:  # an axis is cut where factors of a node's axes meet
        signal = context.signal_of(source)
        everything = signal.layout.content(*range(len(source.shape)))
        flat = context.arranged(call, signal, [everything])
        return replace(flat, layout=flat.layout.reshaped(call.shape))


def viewed(context: Context, value: Symbolic, layout: Layout) -> Symbolic:
    """Return the same values in another layout."""
    if isinstance(value, PendingSynapse) and value.geometry:
        before, after = (len(each.axes) - each.first_own for each in (value.layout, layout))
        is_pixel = len(layout.axes[-1]) <= 1 and set(value.layout.node[1:]) == {1}
        if after == 1 < before and is_pixel:
            return as_linear(context, value, layout) or replace(value, layout=layout)
    return replace(value, layout=layout)


def permute(context: Context, call: Call) -> Symbolic:
    """Lower a permutation of axes."""
    value = context.symbolic(context.source(call, "self"))
    rank, given = len(call.shape), call.arguments
    order = list(range(rank))
    if "dims" in given:
        order = [axis % rank for axis in given["dims"]]
    elif call.operator == "aten.movedim":
        numbered = torch.empty([*range(rank)], device="meta")  # the size of an axis is its number
        order = list(numbered.movedim(given["source"], given["destination"]).shape)
    elif rank > 1:
        own = {"aten.mT": (-2, -1), "aten.t": (0, 1)}
        first, second = own.get(call.operator) or [*given.values()][1:]
        order[first], order[second] = order[second], order[first]
    return viewed(context, value, value.layout.permuted(order))


def shuffle_pixels(context: Context, call: Call) -> Symbolic:
    """Lower a pixel shuffle or unshuffle."""
    source = context.source(call, "self")
    value, shape = context.symbolic(source), list(source.shape)
    lead, (channels, height, width) = shape[:-3], shape[-3:]
    first = len(lead)
    if call.operator == "aten.pixel_shuffle":
        factor = call.arguments["upscale_factor"]
        sizes = [channels // factor**2, factor, factor, height, width]
        order = [0, 3, 1, 4, 2]
    else:
        factor = call.arguments["downscale_factor"]
        sizes = [channels, height // factor, factor, width // factor, factor]
        order = [0, 2, 4, 1, 3]
    split = value.layout.reshaped([*lead, *sizes])
    moved = split.permuted([*range(first), *(first + axis for axis in order)])
    return viewed(context, value, moved.reshaped(call.shape))


def shuffle_channels(context: Context, call: Call) -> Symbolic:
    """Lower a channel shuffle."""
    source = context.source(call, "self")
    value, (batch, channels, *space) = context.symbolic(source), source.shape
    groups = call.arguments["groups"]
    split = value.layout.reshaped([batch, groups, channels // groups, *space])
    order = [0, 2, 1, *range(3, len(split.axes))]
    return viewed(context, value, split.permuted(order).reshaped(call.shape))


def take_slice(context: Context, call: Call) -> Symbolic:
    """Lower a slice, or narrow."""
    source, given = context.source(call, "self"), call.arguments
    axis, size = given["dim"] % len(source.shape), source.shape[given["dim"]]
    start, stop, step = slice(given["start"], given.get("end"), given.get("step", 1)).indices(size)
    if "length" in given:
        stop = start + given["length"]
    return _part(context, call, source, axis, range(start, stop, step))


def select(context: Context, call: Call) -> Symbolic:
    """Lower the selection of one index of an axis."""
    source, given = context.source(call, "self"), call.arguments
    axis = given["dim"] % len(source.shape)
    index = given["index"] % source.shape[axis]
    part = _part(context, call, source, axis, range(index, index + 1), removes=True)
    return replace(part, layout=part.layout.without({axis}))


def split(context: Context, call: Call) -> tuple[Symbolic, ...]:
    """Lower a split into parts of equal or given sizes, chunk or unbind."""
    source, given = context.source(call, "self"), call.arguments
    axis = given["dim"] % len(source.shape)
    whole = source.shape[axis]
    sizes = given.get("split_sizes") or given.get("split_size") or given.get("sections")
    if call.operator == "aten.unbind":
        sizes = 1
    elif call.operator == "aten.chunk":
        sizes = -(-whole // given["chunks"])
    if isinstance(sizes, int):
        sizes = [min(sizes, whole - first) for first in range(0, whole, sizes)]
    if sizes is None:
        return context.refuse(call, "it does not split as torch.split does")
    parts: list[Symbolic] = []
    first, removes = 0, call.operator == "aten.unbind"
    for size in sizes:
        part = _part(context, call, source, axis, range(first, first + size), removes=removes)
        if removes:
            part = replace(part, layout=part.layout.without({axis}))
        parts.append(part)
        first += size
    return tuple(parts)


def _part(
    context: Context, call: Call, source: Call, axis: int, part: range, *, removes: bool = False
) -> Symbolic:
    """Return the values at some indices of an axis, which may be removed afterwards."""
    size, whole = source.shape[axis], context.symbolic(source)
    is_own = not any(factor.axis < 0 for factor in whole.layout.axes[axis])
    if part == range(size) and (is_own or not removes):
        return whole
    if not part:
        context.refuse(call, "it takes an empty part")
    if not is_own:
        context.refuse(call, _PARTS)
    value = context.signal_of(source, repeat=False)
    factors = value.layout.axes[axis]
    is_single = len(factors) == 1
    own = factors[0].axis if is_single else CHANNELS
    outer = factors[0].stride if is_single else 1
    is_outermost = is_single and outer * size == value.layout.node[own]
    if not is_outermost or (outer > 1 and part.step > 1):
        value = context.channels_first(call, value, axis)
        own, outer = CHANNELS, 1
    start, stop = part.start * outer, (part[-1] + 1) * outer
    node = list(value.layout.node)
    node[own] = len(part) * outer
    new = (Factor(own, len(part), outer),) if len(part) > 1 else ()
    axes = tuple(new if n == axis else a for n, a in enumerate(value.layout.axes))

    def make() -> Slice:
        return Slice(axis=own, start=start, stop=stop, step=part.step, has_time=value.has_time)

    def scale(numbers: Tensor) -> Tensor:
        return numbers[start : stop : part.step] if own == CHANNELS else numbers

    path = context.prefix(call) + "slice"
    return context.moved(value, path, make, Layout(axes, tuple(node)), scale)


def concatenate(context: Context, call: Call) -> Symbolic:
    """Lower a concatenation, or the repetition of a static current over time.

    Concatenated channels stay separate terms.
    """
    parts = call.arguments["tensors"]
    if not all(isinstance(part, Call) for part in parts):
        context.refuse(call, "it concatenates a tensor that does not depend on the input")
    signals = [context.signal_of(part, repeat=False) for part in parts]
    if len({signal.repeat for signal in signals}) > 1:
        signals = [context.repeated(signal) for signal in signals]
    axis = call.arguments["dim"] % len(call.shape)
    first = signals[0].layout
    is_once = first.is_static and not first.axes[0]
    if axis == 0 and is_once and same_value(context, parts) is not None:
        return repeat(context, call, signals[0], len(parts))
    if any(f.axis < 0 for signal in signals for f in signal.layout.axes[axis]):
        context.refuse(call, f"it concatenates along time or the batch; {REPEAT}")
    own = [context.channels_first(call, signal, axis) for signal in signals]
    widened = [signal.layout.resized(axis, call.shape[axis]) for signal in own]
    if any(layout != widened[0] for layout in widened):
        own = [context.channels_first(call, signal, axis, merge=True) for signal in signals]
        widened = [signal.layout.resized(axis, call.shape[axis]) for signal in own]
    if any(layout != widened[0] for layout in widened):
        context.refuse(call, f"it concatenates tensors with and without time; {REPEAT}")
    terms: list[ScaledInput] = []
    start = 0
    for part, signal in zip(parts, own, strict=True):
        terms += [replace(t, first_channel=t.first_channel + start) for t in signal.terms]
        start += part.shape[axis]
    return replace(own[0], terms=tuple(terms), layout=widened[0])


def pad(context: Context, call: Call) -> Symbolic:
    """Lower zero padding of spatial axes."""
    given, source = call.arguments, context.source(call, "self")
    if given.get("mode", "constant") != "constant" or given.get("value") not in (None, 0):
        context.refuse(call, "only zeros are padded")
    pairs = list(zip(given["pad"][::2], given["pad"][1::2], strict=True))
    if not any(map(any, pairs)):
        return context.symbolic(source)
    signal = context.signal_of(source, repeat=False)
    first, rank = signal.layout.first_own, len(source.shape)
    outer = pairs[rank - first :]
    if any(map(any, outer)):
        context.refuse(call, "it pads the time axis or the batch axis; pad spatial axes only")
    pairs = pairs[: rank - first]
    signal = context.as_axes(call, signal, first)
    before, after = [0] * (rank - first), [0] * (rank - first)
    for axis, (low, high) in enumerate(pairs, 1):
        before[-axis], after[-axis] = low, high
    if before[0] or after[0] or min(*before, *after) < 0:
        context.refuse(call, "it pads channels; pad spatial axes only")
    sizes = zip(signal.layout.node, before, after, strict=True)
    layout = signal.layout.with_node([sum(axis) for axis in sizes], first=first)

    def make() -> ZeroPad:
        zeros = tuple(before[1:]), tuple(after[1:])
        return ZeroPad(before=zeros[0], after=zeros[1], has_time=signal.has_time)

    return context.moved(signal, context.path(call, "pad"), make, layout)


def upsample(context: Context, call: Call) -> Symbolic:
    """Lower nearest upsampling by whole factors."""
    source = context.source(call, "input" if "input" in call.arguments else "self")
    sizes = list(zip(call.shape[2:], source.shape[2:], strict=True))
    if any(new % old for new, old in sizes):
        context.refuse(
            call, f"it resizes {source.shape[2:]} to {call.shape[2:]}; use whole factors"
        )
    factors = tuple(new // old for new, old in sizes)
    signal = context.as_axes(call, context.signal_of(source, repeat=False), 1)
    layout = signal.layout.with_node((signal.layout.node[0], *call.shape[2:]), first=1)

    def make() -> Upsample:
        return Upsample(factors=factors, has_time=signal.has_time)

    return context.moved(signal, context.path(call, "upsample"), make, layout)


def roll(context: Context, call: Call) -> Symbolic:
    """Lower a roll or a flip of axes."""
    source, given = context.source(call, "self"), call.arguments
    is_flip, rank = call.operator == "aten.flip", len(call.shape)
    axes = [axis % rank for axis in given.get("dims", ())]
    if not axes and not is_flip:
        context.refuse(call, "it rolls the flattened tensor; write torch.roll(x, shifts, dims)")
    value = context.signal_of(source, repeat=False)
    for axis, shift in zip(axes, [0] * len(axes) if is_flip else given["shifts"], strict=True):
        size = call.shape[axis]
        start, step = (size - 1, -1) if is_flip else (-shift % size, 1)
        if size > 1 and (start or is_flip):
            value = _around(context, call, value, axis, start, step)
    return value


def _around(
    context: Context, call: Call, value: SymbolicValue, axis: int, start: int, step: int
) -> SymbolicValue:
    if any(factor.axis < 0 for factor in value.layout.axes[axis]):
        context.refuse(call, _PARTS)
    (factor, *others) = value.layout.axes[axis]
    own = factor.axis
    if others or factor.stride > 1 or value.layout.node[own] != call.shape[axis]:
        value, own = context.channels_first(call, value, axis, merge=True), CHANNELS

    def make() -> Roll:
        return Roll(axis=own, start=start, step=step, has_time=value.has_time)

    def scale(numbers: Tensor) -> Tensor:
        places = (start + step * torch.arange(len(numbers))) % len(numbers)
        return numbers[places] if own == CHANNELS else numbers

    return context.moved(value, context.path(call, "roll"), make, value.layout, scale)


def pass_on(context: Context, call: Call) -> Symbolic:
    """Lower an operator that returns its input in eval mode."""
    name = "self" if "self" in call.arguments else "input"
    return context.symbolic(context.source(call, name))


def convert(context: Context, call: Call) -> Symbolic:
    """Lower a conversion to float32 or float64, or to another device."""
    kind = call.arguments.get("dtype")
    if kind not in (None, torch.float32, torch.float64):
        context.refuse(call, f"it rounds to {kind}; leave the tensors in float32")
    return pass_on(context, call)


def drop(context: Context, call: Call) -> Symbolic:
    """Lower a dropout; raise if it also drops values in eval mode."""
    if call.arguments["train"] and call.arguments["p"]:
        context.refuse(call, "it drops values in eval mode too; pass training=self.training")
    return pass_on(context, call)


def take(context: Context, call: Call) -> Any:
    """Lower the selection of one of several results."""
    source, index = call.arguments["0"], call.arguments["1"]
    value = context.values[source]
    results = value if isinstance(value, tuple) else (value,)
    if index >= len(results):
        context.refuse(source, "code reads its second result, such as indices or statistics")
    return results[index]


def _named(handler: Handler, *names: str) -> dict[str, Handler]:
    return {f"aten.{name}": handler for name in names}


HANDLERS: dict[str, Handler] = {
    **_named(view, "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as"),
    **_named(view, "reshape_as", "ravel"),
    **_named(permute, "permute", "transpose", "movedim", "t", "mT"),
    **_named(shuffle_pixels, "pixel_shuffle", "pixel_unshuffle"),
    **_named(shuffle_channels, "channel_shuffle", "native_channel_shuffle"),
    **_named(take_slice, "slice", "narrow"),
    **_named(select, "select"),
    **_named(split, "split", "split_with_sizes", "chunk", "unbind", "tensor_split"),
    **_named(concatenate, "cat"),
    **_named(roll, "roll", "flip"),
    **_named(pad, "pad", "constant_pad_nd"),
    **_named(upsample, "upsample_nearest1d", "upsample_nearest2d"),
    **_named(upsample, "_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
    **_named(pass_on, "clone", "contiguous", "detach", "detach_", "alias", "lift_fresh_copy"),
    **_named(convert, "to", "_to_copy", "type_as"),
    **_named(drop, "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
    "getitem": take,
}
