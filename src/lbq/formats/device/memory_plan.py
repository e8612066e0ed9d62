"""Where the values of an integer network live on a device that runs one timestep at a time.

Nodes without time run once, the others at every timestep. Values whose lifetimes do not overlap
share a place; carries of neurons are not part of the plan.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lbq.errors import LoweringError
from lbq.graph.graph import INPUT, LoweredNetwork, Node
from lbq.graph.operators import Readout, Repeat


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The order of the nodes, and the places of their values."""

    once: tuple[Node, ...]
    """Nodes that run before the first timestep."""
    always: tuple[Node, ...]
    """Nodes of every timestep."""
    origins: Mapping[str, str]
    """By path, the node whose place it reads: a repetition has none of its own."""
    places: Mapping[str, int]
    """First element of every node in the memory of its kind."""
    sizes: Mapping[str, int]
    """Elements of every memory."""


def plan_memory(
    network: LoweredNetwork, kind: Callable[[str], str], *, holds_input: bool = False
) -> MemoryPlan:
    """Place all values.

    Args:
        network: of integers, in which readouts come last.
        kind: of a path, the memory that holds it.
        holds_input: whether the input has a place too, which it keeps.
    """
    once, always = _phases(network)
    values, origins = network.values(), _origins(network)
    order = [INPUT] * holds_input + [node.path for node in (*once, *always)]
    first = {path: n for n, path in enumerate(order)}
    last = dict(first)
    start = holds_input + len(once)  # of the timestep
    for node in (*once, *always):
        for name in (origins[name] for name in node.inputs):
            if name in first:
                crosses = first[name] < start <= first[node.path]
                last[name] = max(last[name], len(order) if crosses else first[node.path])
    if holds_input:
        last[INPUT] = len(order)
    places: dict[str, int] = {}
    sizes: dict[str, int] = {}
    held = [p for p in order if p == INPUT or not isinstance(network.operators[p], Readout)]
    for path in sorted(held, key=lambda p: (-values[p].size, first[p])):
        size, place = values[path].size, 0
        taken = sorted(
            (places[other], places[other] + values[other].size)
            for other in places
            if kind(other) == kind(path)
            and first[other] <= last[path]
            and first[path] <= last[other]
        )
        for low, high in taken:
            if place + size <= low:
                break
            place = max(place, high)
        places[path] = place
        sizes[kind(path)] = max(sizes.get(kind(path), 0), place + size)
    return MemoryPlan(
        once=tuple(once), always=tuple(always), origins=origins, places=places, sizes=sizes
    )


def _origins(network: LoweredNetwork) -> dict[str, str]:
    found = {INPUT: INPUT}
    for path, node, inputs in network.nodes:
        found[path] = found[inputs[0]] if isinstance(node, Repeat) else path
    return found


def _phases(network: LoweredNetwork) -> tuple[list[Node], list[Node]]:
    """Split the nodes into those that run once and those of every timestep."""
    is_read = {name for node in network.nodes for name in node.inputs}
    once: list[Node] = []
    always: list[Node] = []
    for node in network.nodes:
        is_readout = isinstance(node.operator, Readout)
        if is_readout and node.path in is_read:
            raise LoweringError(
                f"{node.path} ends the time axis and another node reads it; a device takes "
                f"networks that end with their readouts"
            )
        if isinstance(node.operator, Repeat):
            continue
        is_timed = network.values()[node.path].has_time or is_readout
        (always if is_timed else once).append(node)
    return once, always
