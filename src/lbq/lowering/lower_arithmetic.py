"""Lower sums, products with constants, and products of levels."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from lbq.graph.capture import Call, Constant
from lbq.graph.layout import Layout
from lbq.graph.operators import Multiply, Offset
from lbq.lowering.context import REPEAT, Context, Handler
from lbq.lowering.lower_synapses import linear
from lbq.lowering.values import (
    PendingProduct,
    ScaledInput,
    Symbolic,
    SymbolicValue,
    numbers,
)
from lbq.models.spikeformer_blocks import is_left_first

_LEVELS = "it multiplies currents, and only products of levels are exact; put a neuron before it"


def add(context: Context, call: Call) -> Symbolic:
    """Lower a sum or difference of two values, or of a value and constants."""
    left, right = (call.arguments[name] for name in ("self", "other"))
    factors = [1, call.arguments["alpha"] * (1 if call.operator == "aten.add" else -1)]
    if call.operator == "aten.rsub":  # other - alpha * self
        factors.reverse()
    if not (isinstance(left, Call) and isinstance(right, Call)):
        return _shift(context, call, *(factors if isinstance(left, Call) else factors[::-1]))
    if left.shape != right.shape:
        context.refuse(call, f"it adds shapes {left.shape} and {right.shape}; expand one of them")
    sides = [context.materialize(context.symbolic(side)) for side in (left, right)]
    if not all(side.is_mean for side in sides):
        sides = [context.signal_of(side) for side in (left, right)]
    first, second = aligned(context, call, *sides)
    first, second = (s.scaled(numbers(f)) for s, f in zip((first, second), factors, strict=True))
    both = first.added(second)
    if both.are_levels:
        return both  # bursts: a synapse reads each branch
    everything = replace(both, terms=(*first.terms, *second.terms))
    return replace(both, terms=(context.currents(everything, context.prefix(call)),))


def aligned(
    context: Context, call: Call, first: SymbolicValue, second: SymbolicValue
) -> tuple[SymbolicValue, SymbolicValue]:
    """Return two values of equal shape on nodes with the same axes."""
    if first.layout == second.layout:
        return first, second
    if first.has_time != second.has_time or first.is_mean != second.is_mean:
        context.refuse(call, f"it combines a tensor with time and one without; {REPEAT}")
    new = second.layout.arranged_like(first.layout)
    if new is not None:
        return first, context.rearranged(call, second, new)
    new = first.layout.arranged_like(second.layout)
    if new is not None:
        return context.rearranged(call, first, new), second
    flat = [
        context.arranged(call, value, [value.layout.content(*range(len(value.layout.axes)))])
        for value in (first, second)
    ]
    if flat[0].layout != flat[1].layout:
        context.refuse(call, "time and batch are merged with other axes in different ways")
    return flat[0], flat[1]


def _shift(context: Context, call: Call, factor: float, constant_factor: float) -> Symbolic:
    """Lower a scaled value plus a constant: part of a synapse's bias, or an offset."""
    source, constant = _split(call)
    if call.shape != source.shape:
        context.refuse(call, f"a constant makes {source.shape} into {call.shape}")
    value = context.symbolic(source)
    added = constant_factor * _value_of(constant)
    if factor == 1 and not bool(added.any()):
        return value
    own = _per_channel(added, value.layout, len(call.shape))
    pending = context.pending(source)
    if pending and pending.takes_bias and own is not None:
        return pending.folded(numbers(factor), own)
    signal = context.signal_of(source).scaled(numbers(factor))
    layout = signal.layout
    bias = numbers(0)
    if added.numel() > 1:
        first, rank = layout.first_own, len(call.shape)
        full = added.reshape(*[1] * (rank - added.dim()), *added.shape)
        if layout.content(*range(first)) or math.prod(full.shape[:first]) > 1:
            context.refuse(call, "the constant differs between samples or timesteps")
        bias = layout.to_node(full.reshape(full.shape[first:]).expand(layout.shape[first:]))
    else:
        bias = added.reshape([1] * len(layout.node))
    currents = context.currents(signal, context.prefix(call))
    path = context.add(
        context.path(call, "offset"), Offset(context.to_dtype(bias)), currents.source
    )
    return context.given(path, layout)


def scale(context: Context, call: Call) -> Symbolic:
    """Lower a product with constants, a quotient by constants, or a product of levels."""
    source, constant = _split(call)
    if call.arguments.get("rounding_mode") is not None:
        context.refuse(call, "it rounds (rounding_mode)")
    is_quotient = call.operator == "aten.div"
    if isinstance(constant, Call):
        if is_quotient:
            context.refuse(call, "it divides two values that depend on the network's input")
        return multiply(context, call, source, constant)
    if is_quotient and source is not call.arguments["self"]:
        context.refuse(call, "it divides a constant by a value that depends on the network's input")
    if call.shape != source.shape:
        context.refuse(call, f"a constant makes {source.shape} into {call.shape}")
    factor = _value_of(constant)
    factor = 1 / factor if is_quotient else factor
    if not bool(((factor != 0) & factor.isfinite()).all()):
        context.refuse(call, f"it multiplies by {factor.abs().min():g}..{factor.abs().max():g}")
    value = context.symbolic(source)
    own = _per_channel(factor, value.layout, len(call.shape))
    if own is None:
        context.refuse(call, "its constant is neither one number nor one per channel")
    if len(source.readers) == 1 and own.numel() == 1 and isinstance(value, PendingProduct):
        return replace(value, scale=value.scale * own)
    pending = context.pending(source)
    return pending.folded(own) if pending else context.materialize(value).scaled(own)


def negate(context: Context, call: Call) -> Symbolic:
    """Lower a negation."""
    source = context.source(call, "self")
    pending = context.pending(source)
    gain = numbers(-1)
    return pending.folded(gain) if pending else context.signal_of(source).scaled(gain)


def multiply(context: Context, call: Call, left: Call, right: Call) -> SymbolicValue:
    """Lower an element-wise product of levels; axes of length 1 are repeated."""
    sides = [context.signal_of(side) for side in (left, right)]
    if not all(side.are_levels for side in sides):
        context.refuse(call, _LEVELS)
    if left.shape == right.shape:
        first, second = aligned(context, call, *sides)
        layout = first.layout
    else:
        begin = max(side.layout.first_own for side in sides)
        if len(left.shape) != len(right.shape):
            context.refuse(call, f"it multiplies shapes {left.shape} and {right.shape}")
        first, second = (context.as_axes(call, side, begin) for side in sides)
        pairs = zip(first.layout.node, second.layout.node, strict=True)
        layout = first.layout.with_node([max(pair) for pair in pairs], first=begin)
        if first.layout.axes[:begin] != second.layout.axes[:begin]:
            context.refuse(call, f"it combines a tensor with time and one without; {REPEAT}")
    prefix, path = context.prefix(call), context.path(call, "multiply")
    first, second = context.whole(first, prefix), context.whole(second, prefix)
    terms: list[ScaledInput] = []
    for one in first.terms:
        for other in second.terms:
            source = context.add(path, Multiply(), one.source, other.source)
            terms.append(
                ScaledInput(
                    source=source,
                    shape=layout.node,
                    scale=one.scale * other.scale,
                    max_size=(one.max_size or 0) * (other.max_size or 0),
                )
            )
    return SymbolicValue(terms=tuple(terms), layout=layout)


def matmul(context: Context, call: Call) -> Symbolic:
    """Lower a matrix product: a linear layer for a constant matrix, else a product of levels."""
    left, right = list(call.arguments.values())[:2]
    if isinstance(right, Constant) and len(right.shape) == 2:
        matrix = right.compute().detach().double()
        return linear(context, call, left, matrix.t(), None)
    if not (isinstance(left, Call) and isinstance(right, Call)):
        context.refuse(call, "its left operand is a constant; write x @ constant")
    if len(left.shape) != len(right.shape) or left.shape[:-2] != right.shape[:-2]:
        context.refuse(call, f"it multiplies matrices of {left.shape} and {right.shape}")
    values = context.symbolic(left), context.symbolic(right)
    path = context.path(call, "matmul")
    for side, source in enumerate((left, right)):
        pending = values[side]
        if not isinstance(pending, PendingProduct) or len(source.readers) != 1:
            continue
        other = _as_matrices(context, call, (right, left)[side])
        three = [pending.left, pending.right]
        three.insert(2 if side == 0 else 0, other)
        if pending.layout == _product_layout(pending.left, pending.right) and _can_chain(three):
            return _associated(context, three, path, pending.scale)
    first, second = (_as_matrices(context, call, source) for source in (left, right))
    if first.layout.axes[:-2] != second.layout.axes[:-2]:
        context.refuse(call, "time, batch or heads of the two matrices differ in their order")
    return PendingProduct(
        path=path,
        left=first,
        right=second,
        layout=_product_layout(first, second),
        scale=numbers(1.0),
    )


def _as_matrices(context: Context, call: Call, source: Call) -> SymbolicValue:
    """Return levels on nodes ``[groups, rows, columns]``."""
    signal = context.signal_of(source)
    if not signal.are_levels:
        context.refuse(call, _LEVELS)
    layout = signal.layout
    *batch, rows, columns = range(len(layout.axes))
    if any(factor.axis < 0 for axis in (rows, columns) for factor in layout.axes[axis]):
        context.refuse(call, "it multiplies along the batch or along time")
    groups = [layout.content(*batch), layout.content(rows), layout.content(columns)]
    return context.whole(context.arranged(call, signal, groups), context.prefix(call))


def _product_layout(left: SymbolicValue, right: SymbolicValue) -> Layout:
    node = (*left.layout.node[:2], right.layout.node[2])
    batch = left.layout.axes[:-2]
    own = Layout.of_node(node, batch=1).axes[-2:]
    return Layout((*batch, *own), node)


def _can_chain(three: Sequence[SymbolicValue]) -> bool:
    return all(one.layout.axes[:-2] == three[0].layout.axes[:-2] for one in three)


def _associated(
    context: Context, three: Sequence[SymbolicValue], path: str, factor: Tensor
) -> PendingProduct:
    """Return the product of three matrices, in the order with fewer multiplications."""
    a, b, c = three
    left_first = is_left_first(a.layout.node, c.layout.node)
    pair = (a, b) if left_first else (b, c)
    first = PendingProduct(
        path=f"{path}_first",
        left=pair[0],
        right=pair[1],
        layout=_product_layout(*pair),
        scale=factor,
    )
    made = context.materialize(first)
    left, right = (made, c) if left_first else (a, made)
    return PendingProduct(
        path=path, left=left, right=right, layout=_product_layout(left, right), scale=numbers(1.0)
    )


def _split(call: Call) -> tuple[Call, Any]:
    """Return the operand that depends on the input, and the other operand."""
    left, right = (call.arguments[name] for name in ("self", "other"))
    return (left, right) if isinstance(left, Call) else (right, left)


def _value_of(constant: Any) -> Tensor:
    if isinstance(constant, Constant):
        return constant.compute().detach().double()
    return numbers(constant)


def _per_channel(values: Tensor, layout: Layout, rank: int) -> Tensor | None:
    """Return values that broadcast against a tensor as ``[1]`` or ``[C]``; None if they differ."""
    long = [rank - values.dim() + n for n, size in enumerate(values.shape) if size > 1]
    if not long:
        return values.reshape(1)
    return values.flatten() if len(long) == 1 and layout.is_whole(long[0]) else None


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("aten.add", "aten.sub", "aten.rsub"), add),
    **dict.fromkeys(("aten.mul", "aten.div"), scale),
    "aten.neg": negate,
    **dict.fromkeys(("aten.matmul", "aten.mm", "aten.bmm"), matmul),
}
