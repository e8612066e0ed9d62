"""Which integers enter which synapse or product of a network, read from its graph.

Between a neuron and a synapse lie only operators that move levels or pool them. The operators
themselves carry a level through moves and max pools. From the first sum pool on, everything is
linear and belongs to the synapse (docs/decisions/0010), so the fan-out is taken through it. A
product of levels is counted separately, and its result enters the next synapse or product as an
integer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lbq.cost.count_table import Activity, ProductCounts, SynapseSize
from lbq.cost.fan_out import FanOutMap, conv_fan_out, identity_fan_out, linear_fan_out
from lbq.cost.trained_graph import TrainedGraph
from lbq.errors import CountError, ShapeError
from lbq.functional.planes import popcount_wide
from lbq.graph.graph import INPUT, LoweredNetwork
from lbq.graph.operators import (
    Concat,
    LevelsProduct,
    Merge,
    Move,
    Operator,
    Pool,
    Rearrange,
    Synapse,
    Upsample,
    Value,
    Weighted,
    ZeroPad,
)
from lbq.graph.operators.pool import PoolKind
from lbq.neurons.batch_axis import find_batch_axis
from lbq.types import FanOut


@dataclass(frozen=True, kw_only=True, eq=False)
class Edge:
    """Levels of one layer entering one synapse."""

    source: str
    """Path of the neuron, or of another node that computes integers, such as a product."""
    target: str
    """Path of the synapse; for an identity, of the block that adds it."""
    is_identity: bool
    """A shortcut that adds the burst itself: one accumulation per unit, not a synapse's."""
    needs: tuple[str, ...]
    """Neurons whose levels decide what enters: the source, if that is a neuron."""
    carry: Callable[[Mapping[str, Tensor]], Tensor]
    """Returns the values that enter the synapse, given the levels ``[B, *n]`` of these neurons."""
    fan_out: FanOut
    """Outputs that each input position reaches; broadcasts against the values that enter."""
    dense: int
    """MACs of the synapse on these values, for one sample at one timestep, padding included."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelProduct:
    """A node that multiplies levels by levels."""

    name: str
    needs: tuple[str, ...]
    """Neurons whose levels decide its operands."""
    dense: int
    """Pairs of levels that meet, for one sample at one timestep."""
    count: Callable[[Mapping[str, Tensor]], ProductCounts]
    """Counts products at timestep 0, given the levels of these neurons."""


@dataclass(kw_only=True)
class Connectivity:
    """Edges, synapses and neurons of a network."""

    edges: list[Edge] = field(default_factory=list[Edge])
    products: list[LevelProduct] = field(default_factory=list[LevelProduct])
    synapses: list[SynapseSize] = field(default_factory=list[SynapseSize])
    neurons: dict[str, int] = field(default_factory=dict[str, int])
    """Neurons in each layer, in running order."""
    max_levels: dict[str, int] = field(default_factory=dict[str, int])
    """Largest level of each layer."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Shape of each layer's levels, of one sample at one timestep."""
    layer_timesteps: dict[str, int] = field(default_factory=dict[str, int])
    """Timesteps of each layer."""
    timesteps: int = 1
    untracked: list[str] = field(default_factory=list[str])
    """Operations on bursts that were not followed, with the module that made them."""
    uncounted: list[str] = field(default_factory=list[str])
    """Products that are neither convolutions nor linear layers: nothing counts them."""


def read_connectivity(
    model: nn.Module | LoweredNetwork, example: Tensor, *, batch_axis: int | None = None
) -> Connectivity:
    """Read edges, synapses, products and neurons from the graph of a network.

    Args:
        model: a lowered network, or any other that torch.export can export. It is not changed.
        example: input of the model for a batch of one.
        batch_axis: the axis of the example that is the batch, 0 or 1. By default that of length 1;
            if both are, the first of vectors and images (2 or 4 axes), the second of sequences.
    """
    if isinstance(model, LoweredNetwork):
        model.check_input(example)
        graph = _LevelGraph(model)
        found = _read(graph)
        for path, node in graph.nodes.items():
            if isinstance(node, Synapse):
                reads = any(path == edge.target for edge in found.edges)
                found.synapses.append(_size_of(graph, path, node, has_real_input=not reads))
        return found
    trained = TrainedGraph(model, example, batch_axis=_batch_axis(example, batch_axis))
    names = {path: node.name for path, node in trained.emissions.items()}
    found = _read(_LevelGraph(trained.network, names))
    for node in trained.emissions.values():
        if node.name in found.neurons:
            found.shapes[node.name], found.layer_timesteps[node.name] = node.shape, node.timesteps
    entered = {edge.target for edge in found.edges if not edge.is_identity}
    found.synapses = trained.synapses(entered.__contains__)
    found.edges = [replace(e, target=trained.names.get(e.target, e.target)) for e in found.edges]
    found.untracked = trained.untracked + found.untracked
    found.uncounted = trained.uncounted + found.uncounted
    return found


def _batch_axis(example: Tensor, given: int | None) -> int:
    axes = (0, 1) if given is None else (given,)
    ones = [axis for axis in axes if example.dim() > axis and example.shape[axis] == 1]
    if not ones or example.dim() < 2:
        raise ShapeError(
            f"the example must be one sample, but it has shape {list(example.shape)}; pass a batch "
            f"of one, time first if the model takes frames"
        )
    return ones[0] if len(ones) == 1 else find_batch_axis(example, None)


def _read(graph: "_LevelGraph") -> Connectivity:
    """Return edges, products and neurons."""
    found = Connectivity(timesteps=graph.timesteps)
    for path, node in graph.nodes.items():
        if node.counted_as in _RULES:
            _RULES[node.counted_as](graph, path, node, found)
    return found


@dataclass(frozen=True, eq=False)
class _Step:
    """An operator on the way to a synapse, entered as one of its inputs."""

    path: str
    node: Operator
    position: int
    inputs: tuple[Value, ...]
    output: Value

    def carry(self, part: Tensor) -> Tensor:
        """Apply the operator to ``[1, B, *shape]``, with zeros as its other inputs."""
        leading = part.shape[:2]
        return self.node(
            *(
                part if index == self.position else part.new_zeros(*leading, *value.shape)
                for index, value in enumerate(self.inputs)
            )
        )


@dataclass(frozen=True, eq=False)
class _Route:
    """A value that is carried by operators, and the operators from there to a synapse.

    Operators are listed only if some of them are sum pools or are joined with sum pools.
    """

    start: str
    steps: tuple[_Step, ...] = ()


class _LevelGraph:
    """The nodes of a lowered network, and the levels and integers that make up their values.

    Args:
        network: the network.
        names: of neurons, where they are not their paths.
    """

    def __init__(self, network: LoweredNetwork, names: Mapping[str, str] | None = None) -> None:
        def name(path: str) -> str:
            return (names or {}).get(path, path)

        self.values = {name(path): value for path, value in network.values().items()}
        self.nodes = {name(path): node for path, node in network.operators.items()}
        self.inputs = {name(path): tuple(map(name, read)) for path, _, read in network.nodes}
        self.timesteps = network.timesteps
        self.behind: dict[str, frozenset[str]] = {INPUT: frozenset()}
        """Nodes that move or pool, up to a value."""
        self.roots: dict[str, frozenset[str]] = {INPUT: frozenset({INPUT})}
        """Nodes that compute the parts of a value."""
        self._sources: dict[str, frozenset[str]] = {INPUT: frozenset({INPUT})}
        for path, node in self.nodes.items():
            self._add(path, node)

    def _add(self, path: str, node: Operator) -> None:
        def union(of: dict[str, frozenset[str]]) -> frozenset[str]:
            return frozenset[str]().union(*(of[name] for name in self.inputs[path]))

        itself, is_carried = frozenset({path}), node.counted_as == "move"
        is_made = is_carried or node.counted_as == "product"
        self.behind[path] = itself | union(self.behind) if is_carried else frozenset()
        self._sources[path] = union(self._sources) if is_made else itself
        is_root = not is_carried or self._mixes(path, union(self.roots))
        self.roots[path] = itself if is_root else union(self.roots)

    def _mixes(self, path: str, roots: frozenset[str]) -> bool:
        """Return whether a max pool may compare integers of several nodes."""
        nodes = (self.nodes[name] for name in self.behind[path])
        moves = (node for node in nodes if isinstance(node, Concat | Rearrange))
        may_meet = not all(map(_joins_channels, moves))
        return len(roots) > 1 and self.is_pool(path, "max") and may_meet

    def is_pool(self, path: str, kind: PoolKind) -> bool:
        """Return whether a node is a pool of this kind."""
        node = self.nodes.get(path)
        return isinstance(node, Pool) and node.kind == kind

    def is_mixed(self, path: str) -> bool:
        """Return whether a value is a sum of currents and, by a shortcut, of levels."""
        node, inputs = self.nodes.get(path), self.inputs.get(path, ())
        if isinstance(node, Move):
            return any(map(self.is_mixed, inputs))
        adds = {self.nodes[name].counted_as for name in inputs if name != INPUT}
        return isinstance(node, Merge) and "identity" in adds

    def has_sums(self, path: str) -> bool:
        """Return whether sum pools lie between a value and the nodes that compute it."""
        return any(self.is_pool(name, "sum") for name in self.behind[path])

    def needs(self, path: str) -> tuple[str, ...] | None:
        """Return the neurons that decide a value, in running order; None if others do as well."""
        sources = self._sources[path]
        if INPUT in sources or any(self.nodes[name].counted_as != "neuron" for name in sources):
            return None
        return tuple(name for name in self.nodes if name in sources)

    def routes(self, path: str, reader: Weighted | None = None) -> list[_Route]:
        """List the values that enter a node, without operators that keep the reader's counts."""
        if path in self.roots[path]:
            return [_Route(path)]
        node, names = self.nodes[path], self.inputs[path]
        if self.has_sums(path):
            inputs = tuple(self.values[name] for name in names)
            return [
                replace(
                    route, steps=(*route.steps, _Step(path, node, index, inputs, self.values[path]))
                )
                for index, name in enumerate(names)
                for route in self.routes(name)
            ]
        if reader is not None and _keeps_counts(node, reader):
            return [route for name in names for route in self.routes(name, reader)]
        return [_Route(path)]

    def evaluate(self, path: str, values: dict[str, Tensor]) -> Tensor:
        """Return the value ``[1, B, *shape]`` of a node.

        Args:
            path: the node.
            values: known values, at least those of neurons; values computed on the way are added.
        """
        if path not in values:
            inputs = [self.evaluate(name, values) for name in self.inputs[path]]
            values[path] = self.nodes[path](*inputs)
        return values[path]

    def evaluate_part(
        self, path: str, root: str, levels: Mapping[str, Tensor], value: Tensor | None = None
    ) -> Tensor:
        """Return the value of a node with zeros for the values of other roots.

        Args:
            path: the node.
            root: the node whose values are not zero.
            levels: levels of the neurons that decide the root's value.
            value: value of the root, if it is known.
        """
        rows = {name: level.unsqueeze(0) for name, level in levels.items()}
        known = self.evaluate(root, rows) if value is None else value
        values = {
            name: known.new_zeros(*known.shape[:2], *self.values[name].shape)
            for name in self.roots[path]
        }
        return self.evaluate(path, {**values, root: known})

    def dense(self, path: str, node: Weighted, root: str) -> int:
        """Return the MACs of a synapse on the values of a root, padding included."""
        (entering,) = self.inputs[path]
        whole = self.values[entering]
        shape = (1, 1, *self.values[root].shape)
        ones = self.evaluate_part(entering, root, {}, torch.ones(shape, dtype=torch.int32))
        pairs = self.values[path].size * node.weight[0].numel()
        return pairs * int((ones != 0).sum()) // whole.size

    def computed_mask(self, path: str) -> Tensor:
        """Return ``[*shape]``: 1 where a value is computed, 0 where a zero was inserted."""
        ones = {name: self._ones(name) for name in (INPUT, *self.nodes) if not self.behind[name]}
        carried = self.evaluate(path, ones)
        return (carried != 0).reshape(self.values[path].shape).long()

    def _ones(self, path: str) -> Tensor:
        value = self.values[path]
        leading = (1, 1) if value.has_time else (1,)
        return torch.ones(1, dtype=torch.uint8).expand(*leading, *value.shape)


def _add_neuron(graph: _LevelGraph, path: str, node: Operator, found: Connectivity) -> None:
    value = graph.values[path]
    found.neurons[path], found.max_levels[path] = value.size, value.max_level or 0
    found.shapes[path], found.layer_timesteps[path] = value.shape, graph.timesteps


def _add_edges(graph: _LevelGraph, path: str, node: Weighted, found: Connectivity) -> None:
    for route in _routes_into(graph, path, node, found):
        found.edges += _edges(graph, path, node, route)


def _routes_into(
    graph: _LevelGraph, path: str, node: Weighted, found: Connectivity
) -> list[_Route]:
    """List the ways of levels into a synapse; none if it reads real numbers or counts as such."""
    (entering,) = graph.inputs[path]
    if graph.values[entering].max_level is None:
        if graph.is_mixed(entering):
            found.untracked.append(f"sum of bursts and currents into {path}")
        return []
    if graph.roots[entering] == frozenset({INPUT}):
        return []
    if graph.needs(entering) is None:
        found.untracked.append(f"input joined with levels into {path}")
        return []
    for name in graph.nodes:
        if name in graph.behind[entering] and graph.is_pool(name, "max") and graph.has_sums(name):
            found.untracked.append(f"maximum of sums in {name}")
            return []
    return graph.routes(entering, node)


def _edges(graph: _LevelGraph, path: str, node: Weighted, route: _Route) -> Iterator[Edge]:
    """Carry levels up to the first sum pool; the fan-out is that of everything from there on."""
    is_identity = node.counted_as == "identity"
    is_sum = [graph.is_pool(step.path, "sum") for step in route.steps]
    first = [*is_sum, True].index(True)
    reach = _fan_out(node, graph.values[graph.inputs[path][0]], is_behind_sum=any(is_sum))
    for step in reversed(route.steps[first:]):
        reach = _through(reach, step, path, is_identity=is_identity)
    carried = route.steps[:first]

    def carry(root: str, levels: Mapping[str, Tensor]) -> Tensor:
        if not carried and route.start in levels:
            return levels[root]
        part = graph.evaluate_part(route.start, root, levels)
        for step in carried:
            part = step.carry(part)
        return part.squeeze(0)  # [B, *n]

    for root in graph.nodes:
        if root not in graph.roots[route.start]:
            continue
        if is_identity and graph.nodes[root].counted_as == "product":
            continue  # the sums of a product are counted with it
        yield Edge(
            source=root,
            target=path.rpartition(".")[0] if is_identity else path,
            is_identity=is_identity,
            needs=graph.needs(root) or (),
            carry=partial(carry, root),
            fan_out=reach.fan_out(),
            dense=graph.dense(path, node, root),
        )


def _keeps_counts(move: Operator, reader: Weighted) -> bool:
    """Return whether a reader counts the same without the move before it."""
    if isinstance(reader, Synapse) and not reader.is_linear:
        return _joins_channels(move)
    return isinstance(move, Concat | Rearrange | ZeroPad)


def _joins_channels(move: Operator) -> bool:
    return isinstance(move, Concat) and move.axis == 0


def _fan_out(node: Weighted, value: Value, *, is_behind_sum: bool = False) -> FanOutMap:
    if not isinstance(node, Synapse):
        return identity_fan_out(value.shape[1:]) if is_behind_sum else linear_fan_out(1)
    if node.is_linear:
        return linear_fan_out(len(node.weight))
    return conv_fan_out(
        value.shape[1:],
        node.weight.shape,
        stride=node.stride,
        padding=node.padding,
        dilation=node.dilation,
        groups=node.groups,
    )


def _through(reach: FanOutMap, step: _Step, target: str, *, is_identity: bool) -> FanOutMap:
    """Take a fan-out through a sum pool, or through a move behind one."""
    node, (_, *space) = step.node, step.inputs[step.position].shape
    if isinstance(node, Pool):
        return reach.through_avg_pool(
            space, kernel=node.kernel, stride=node.stride, padding=node.padding
        )
    reads_all = not reach.axes or (is_identity and reach.is_identity)
    if reads_all and isinstance(node, Rearrange):  # every value, wherever it is
        return identity_fan_out(space) if is_identity else reach
    cells = _moved_axes(step)
    if cells is None:
        raise CountError(
            f"{step.path} moves sums of levels between channels and positions, or leaves some out, "
            f"before {target}, which cannot be counted; move the levels before they are summed"
        )
    return reach.through(cells)


def _moved_axes(step: _Step) -> list[Tensor] | None:
    """Return for every spatial axis which position moves to which, ``[positions, positions]``.

    None if an axis is mixed with others, or if channels are left out.
    """
    shape = step.inputs[step.position].shape
    if len(shape) != len(step.output.shape):
        return None
    cells: list[Tensor] = []
    for axis, length in enumerate(shape):
        numbers = torch.arange(1, length + 1)
        index = numbers.reshape(-1, *[1] * (len(shape) - axis - 1)).expand(shape)
        moved = step.carry(index.reshape(1, 1, *shape))[0, 0]  # 0 where it is not ours
        others = [other for other in range(len(shape)) if other != axis]
        along = moved.amax(others, keepdim=True) if others else moved
        if not bool(((moved == along) | (moved == 0)).all()):
            return None
        cells.append(numbers.unsqueeze(1) == along.flatten())
    channels, *space = cells
    return space if bool(channels.any(1).all()) else None


def _size_of(graph: _LevelGraph, path: str, node: Synapse, *, has_real_input: bool) -> SynapseSize:
    (entering,) = graph.inputs[path]
    value, output = graph.values[entering], graph.values[path]
    mask = graph.computed_mask(entering)
    macs = int((mask * _fan_out(node, value).fan_out()).sum())
    moves = [graph.nodes[name] for name in graph.behind[entering]]
    has_gaps = any(isinstance(node, Upsample) and node.fill == "zeros" for node in moves)
    padded_macs = macs if has_gaps else output.size * node.weight[0].numel()
    timesteps = graph.timesteps if value.has_time else 1
    return SynapseSize(
        name=path,
        macs=macs * timesteps,
        padded_macs=padded_macs * timesteps,
        timesteps=timesteps,
        num_weights=node.weight.numel(),
        inputs=int(mask.sum()),
        has_real_input=has_real_input,
    )


def _add_product(graph: _LevelGraph, path: str, node: LevelsProduct, found: Connectivity) -> None:
    """Add a product of levels, or list its parts that are not counted."""
    names = graph.inputs[path]
    if any(map(graph.has_sums, names)):
        found.uncounted.append(f"additions of the pools before {path}")
    needs = graph.needs(path)
    if needs is None:
        found.uncounted.append(f"{node.op} in {path}, which reads the network's input")
        return
    left, right = (graph.values[name] for name in names)
    is_left_integer = (left.max_level or 0) > (right.max_level or 0)
    size = graph.values[path].size * node.num_terms(left)
    are_levels = [graph.roots[name] <= frozenset(needs) for name in names]

    def count(levels: Mapping[str, Tensor]) -> ProductCounts:
        values = {layer: level.unsqueeze(0) for layer, level in levels.items()}
        operands = [graph.evaluate(name, values).long().abs() for name in names]
        bits = [popcount_wide(operand) for operand in operands]
        serial = [
            (operand != 0).long() if is_left == is_left_integer else bit
            for operand, bit, is_left in zip(operands, bits, (True, False), strict=True)
        ]
        sides = [
            _activity(operand) if is_level else Activity()
            for operand, is_level in zip(operands, are_levels, strict=True)
        ]
        return ProductCounts(
            name=path,
            t=0,
            unary=node.total(*operands),
            bit_pairs=node.total(*bits),
            bit_serial=node.total(*serial),
            dense=size * operands[0].shape[1],
            left=sides[0],
            right=sides[1],
        )

    found.products.append(LevelProduct(name=path, needs=needs, dense=size, count=count))


def _activity(levels: Tensor) -> Activity:
    return Activity(size=levels.numel(), active=int((levels != 0).sum()), levels=int(levels.sum()))


_RULES: dict[str, Callable[[_LevelGraph, str, Any, Connectivity], None]] = {
    "neuron": _add_neuron,
    "synapse": _add_edges,
    "identity": _add_edges,
    "product": _add_product,
}
"""By what a node is counted as."""
