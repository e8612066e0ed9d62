"""Lower pools, means, sums and maxima."""

import math
from dataclasses import replace

from lbq.graph.capture import Call
from lbq.graph.layout import TIME, Layout
from lbq.lowering.context import Context, Handler
from lbq.lowering.lower_moves import viewed
from lbq.lowering.pool_args import PoolArgs, global_pool, read_pool
from lbq.lowering.values import ScaledInput, Symbolic, SymbolicValue, numbers


def pool(context: Context, call: Call) -> Symbolic:
    """Lower a pool; for a max pool with indices, the maxima."""
    source, name = context.source(call, "self"), call.operator.removeprefix("aten.")
    is_adaptive_max = name.startswith("adaptive_max")
    name = name.removesuffix("_with_indices").replace("adaptive_max", "adaptive_avg")
    given = {key: value for key, value in call.arguments.items() if key != "self"}
    window = read_pool(name, (), given, size=source.shape[2:])
    if isinstance(window, str) or window.divisor_issue:
        return context.refuse(call, window if isinstance(window, str) else window.divisor_issue)
    window = replace(window, is_max=window.is_max or is_adaptive_max)
    pending = None if window.is_max else context.pending(source)
    is_map = len(source.shape) == len(window.kernel) + 2
    if pending and pending.geometry and is_map:
        node = (pending.layout.node[0], *window.output_size())
        after = pending.layout.with_node(node, first=1)
        if pending.layout == pending.layout.with_node(pending.layout.node, first=1):
            path, gain = context.path(call, "pool"), numbers(1 / math.prod(window.kernel))
            pools = (*pending.pools, (path, window))
            return replace(pending.folded(gain), pools=pools, layout=after)
    if not is_map:
        context.refuse(call, f"its input, {list(source.shape)}, has no batch axis; add one")
    signal = context.as_axes(call, context.signal_of(source), 1)
    node = (signal.layout.node[0], *window.output_size())
    return _pooled(context, call, signal, window, signal.layout.with_node(node, first=1))


def reduce(context: Context, call: Call) -> Symbolic:
    """Lower a mean, a sum or a maximum over axes; over time, only a mean."""
    source, kind = context.source(call, "self"), call.operator.removeprefix("aten.")
    given = call.arguments.get("dim")
    rank = len(source.shape)
    dims = range(rank) if given in (None, []) else [given] if isinstance(given, int) else given
    axes, keeps = {axis % rank for axis in dims}, bool(call.arguments.get("keepdim"))
    value = context.symbolic(source)
    times = {n for n in axes if [f.axis for f in value.layout.axes[n]] == [TIME]}
    if any(f.axis < 0 for n in axes - times for f in value.layout.axes[n]):
        context.refuse(call, "it computes along the batch")
    if times and (kind != "mean" or keeps):
        why = "keeps the time axis (keepdim)" if keeps else f"takes a {kind} over time"
        context.refuse(call, f"it {why}; use a mean over time")
    if axes - times:
        value = _over_space(context, call, source, axes - times, kind)
    value = viewed(context, value, value.layout.without(set() if keeps else axes - times))
    if not times:
        return value
    signal = context.repeated(context.materialize(value))
    if any(term.max_size is not None for term in signal.terms):
        context.refuse(call, "it averages levels over time; average behind the classifier")
    own = {n for n, axis in enumerate(signal.layout.axes) if [f.axis for f in axis] == [TIME]}
    return replace(signal, layout=signal.layout.without(own), is_mean=True)


def _over_space(context: Context, call: Call, source: Call, axes: set[int], kind: str) -> Symbolic:
    """Reduce over axes that are neither time nor batch, and keep them with length 1."""
    value = context.symbolic(source)
    layout = value.layout
    size = math.prod(source.shape[n] for n in axes)
    others = [n for n in range(len(layout.axes)) if n not in axes]
    is_space = all(f.axis > 0 for f in layout.content(*axes)) and all(
        f.axis == 0 for f in layout.content(*others)
    )
    if is_space and len(layout.node) > 1:
        window = replace(global_pool(layout.node[1:]), is_max=kind in ("amax", "max"))
        after = _emptied(layout, axes, (layout.node[0], *(1,) * (len(layout.node) - 1)))
        pending = None if window.is_max else context.pending(source)
        if pending and pending.geometry:
            pools = (*pending.pools, (context.path(call, "pool"), window))
            made = pending.folded(numbers(1 / size if kind == "mean" else 1.0))
            return replace(made, pools=pools, layout=after)
        signal = context.signal_of(source)
    else:
        signal = context.signal_of(source)
        groups = [layout.content(*others), layout.content(*sorted(axes))]
        signal = context.arranged(call, signal, groups)
        window = replace(global_pool((size,)), is_max=kind in ("amax", "max"))
        after = _emptied(signal.layout, axes, (signal.layout.node[0], 1))
    pooled = _pooled(context, call, signal, window, after)
    return pooled.scaled(numbers(size)) if kind == "sum" else pooled


def _emptied(layout: Layout, axes: set[int], node: tuple[int, ...]) -> Layout:
    """Return the layout with axes of length 1 in place of some."""
    return Layout(tuple(() if n in axes else axis for n, axis in enumerate(layout.axes)), node)


def _pooled(
    context: Context, call: Call, signal: SymbolicValue, window: PoolArgs, layout: Layout
) -> SymbolicValue:
    """Pool each term; for the maximum of a sum or of negative multiples, pool the currents."""
    path, size = context.path(call, "pool"), math.prod(window.kernel)
    if window.is_max:
        starts = [term.first_channel for term in signal.terms]
        are_positive = all(bool((term.scale > 0).all()) for term in signal.terms)
        if len(set(starts)) < len(starts) or not are_positive:
            currents = context.currents(signal, context.prefix(call))
            signal = replace(signal, terms=(currents,))
    terms: list[ScaledInput] = []
    for term in signal.terms:
        made = replace(
            term,
            source=context.add_pool(path, window, term.source, signal),
            shape=(term.shape[0], *layout.node[1:]),
        )
        if not window.is_max:
            largest = None if term.max_size is None else term.max_size * size
            made = replace(made, scale=term.scale * (1 / size), max_size=largest)
        terms.append(made)
    return replace(signal, terms=tuple(terms), layout=layout)


def pool_with_indices(context: Context, call: Call) -> tuple[Symbolic]:
    """Lower a max pool whose second result, the indices, is not read."""
    return (pool(context, call),)


_POOLS = ("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d")
_WITH_INDICES = (
    *("max_pool1d_with_indices", "max_pool2d_with_indices"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d"),
)
HANDLERS: dict[str, Handler] = {
    **{f"aten.{name}": pool for name in (*_POOLS, "adaptive_avg_pool1d", "adaptive_avg_pool2d")},
    **{f"aten.{name}": pool_with_indices for name in _WITH_INDICES},
    **dict.fromkeys(("aten.mean", "aten.sum", "aten.amax"), reduce),
}
