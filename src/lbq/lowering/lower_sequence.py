"""Lower neurons, and the repetition of static currents over time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lbq.graph.capture import Call
from lbq.graph.layout import TIME, Factor
from lbq.graph.operators import RealNeuron, Repeat
from lbq.lowering.context import REPEAT, Context, Handler, LoweredNeuron
from lbq.lowering.neuron_thresholds import as_level_neuron
from lbq.lowering.values import SymbolicValue, numbers
from lbq.neurons.neuron import Neuron


def neuron(context: Context, call: Call) -> SymbolicValue:
    """Lower a neuron."""
    assert isinstance(call.module, Neuron)
    signal = context.signal(call, "currents")
    if not signal.layout.has_time:
        context.refuse(
            call,
            f"its currents, {list(call.shape)}, have no time: {REPEAT}, or pass frames, time first",
        )
    if not signal.layout.is_sequence:
        context.refuse(call, "a neuron takes [T, B, ...]; unflatten the time before it")
    node, step = as_level_neuron(call.module, path=call.path, dtype=context.dtype)
    if len(call.shape) == 5:  # [T, B, C, H, W], as the next synapse will read it
        signal = context.as_axes(call, signal, 2)
    elif node.thresholds.shape[1] > 1 or node.reset_amount.numel() > 1:
        signal = context.channels_first(call, signal, 2)
    signal, node, scale = _scaled_thresholds(signal, node)
    currents = context.currents(signal, f"{call.path}_")
    path = context.add(call.path, node, currents.source)
    context.neurons[path] = LoweredNeuron(trained=call.module, layout=signal.layout, scale=scale)
    term = replace(currents, source=path, scale=step, max_size=node.max_level)
    return replace(signal, terms=(term,))


def _scaled_thresholds(
    signal: SymbolicValue, node: RealNeuron
) -> tuple[SymbolicValue, RealNeuron, Tensor]:
    """Move one positive scale of all currents into the thresholds.

    Because membranes are linear in the currents, all thresholds and resets are divided by the
    scale. Returns the value without the scale, the neuron that reads it, and the scale.
    """
    scale = signal.terms[0].scale
    are_currents = all(term.max_size is None for term in signal.terms)
    are_equal = all(torch.equal(term.scale, scale) for term in signal.terms)
    if signal.is_concatenated or not are_currents or not are_equal or not bool((scale > 0).all()):
        return signal, node, numbers(1.0)
    if bool((scale != 1).any()):
        thresholds, amount = (
            (given.double() / scale).to(given.dtype)
            for given in (node.thresholds, node.reset_amount)
        )
        node = replace(node, thresholds=thresholds, reset_amount=amount)
    terms = tuple(replace(term, scale=numbers(1.0)) for term in signal.terms)
    return replace(signal, terms=terms), node, scale


def expand(context: Context, call: Call) -> SymbolicValue:
    """Lower the repetition of a static current by RepeatOverTime, expand or repeat."""
    source = context.source(call, "self")
    signal = context.signal_of(source)
    before, after, layout = source.shape, call.shape, signal.layout
    if before == after:
        return signal
    one_instant = before[1:] if len(before) == len(after) and not layout.axes[0] else before
    if layout.has_time:
        context.refuse(call, f"it expands {list(before)}, which has time, to {list(after)}")
    if not layout.is_static or after[1:] != one_instant:
        context.refuse(call, f"it expands {list(before)} to {list(after)}; {REPEAT}")
    return repeat(context, call, signal, after[0])


def stack(context: Context, call: Call) -> SymbolicValue:
    """Lower the repetition of a static current by torch.stack."""
    parts = call.arguments["tensors"]
    signal = same_value(context, parts)
    is_static = signal is not None and signal.layout.is_static and bool(signal.layout.axes[0])
    if signal is None or not is_static or call.arguments["dim"] != 0:
        return context.refuse(call, f"it stacks different tensors; {REPEAT}")
    return repeat(context, call, signal, len(parts))


def same_value(context: Context, parts: Sequence[Any]) -> SymbolicValue | None:
    """Return the value that all parts of a list share, or None if they differ."""
    is_same = len({id(part) for part in parts}) == 1 and isinstance(parts[0], Call)
    return context.signal_of(parts[0]) if is_same else None


def repeat(context: Context, call: Call, signal: SymbolicValue, timesteps: int) -> SymbolicValue:
    """Repeat a static value at every timestep."""
    builder, path = context.builder, context.path(call, "repeat")
    if builder.timesteps not in (0, timesteps):
        context.refuse(call, f"it repeats {timesteps} times in a network of {builder.timesteps}")
    builder.timesteps = timesteps
    axes = signal.layout.axes if signal.layout.axes[0] else signal.layout.axes[1:]
    layout = replace(signal.layout, axes=((Factor(TIME, timesteps),), *axes))
    if all(term.source in context.inputs for term in signal.terms):
        return replace(signal, layout=layout, repeat=path)  # synapses run once
    currents = context.currents(signal, f"{call.path}_".lstrip("_"))
    path = context.add(path, Repeat(timesteps), currents.source)
    return SymbolicValue(terms=(replace(currents, source=path),), layout=layout)


HANDLERS: dict[str, Handler] = {
    "lbq.neuron": neuron,
    **dict.fromkeys(("aten.expand", "aten.repeat", "aten.expand_as"), expand),
    "aten.stack": stack,
}
