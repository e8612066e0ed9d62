"""Which integers enter which synapse or product of a lowered network, read from its graph.

From a neuron to a synapse lie only operators that move levels or pool them. A level is carried
through moves and max pools by the operators themselves; from the first sum pool on, everything is
linear and belongs to the synapse (docs/decisions/0010), so the fan-out is taken through it. A
product of levels is counted by itself, and what it gives enters the next synapse or product as an
integer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lbq.cost.connectivity import Connectivity, Edge, LevelProduct
from lbq.cost.count_table import SynapseSize
from lbq.cost.fan_out import FanOutMap, conv_fan_out, identity_fan_out, linear_fan_out
from lbq.deploy.graph import INPUT, LoweredNetwork
from lbq.deploy.operators import (
    Concat,
    LevelNeuron,
    Matmul,
    Move,
    Multiply,
    Operator,
    Pool,
    Rearrange,
    Shortcut,
    Synapse,
    Upsample,
    Value,
    Weighted,
    ZeroPad,
)
from lbq.deploy.operators.pool import PoolKind
from lbq.errors import CountError
from lbq.functional.planes import popcount


def read_connectivity(network: LoweredNetwork) -> Connectivity:
    """Read edges, synapses, products and neurons from the graph; nothing runs."""
    graph, found = _LevelGraph(network), Connectivity(timesteps=network.timesteps)
    for path, node in graph.nodes.items():
        value = graph.values[path]
        if isinstance(node, LevelNeuron):
            found.neurons[path], found.shapes[path] = value.size, value.shape
            found.max_levels[path] = node.max_level
            found.layer_timesteps[path] = network.timesteps
        elif isinstance(node, Weighted):
            routes = _routes_into(graph, path, found)
            if isinstance(node, Synapse):
                found.synapses.append(_size_of(graph, path, node, has_real_input=not routes))
            found.edges += [_edge(graph, path, node, route) for route in routes]
        elif isinstance(node, Matmul | Multiply):
            _add_product(graph, path, node, found)
    return found


@dataclass(frozen=True, eq=False)
class _Step:
    """An operator on the way to a synapse, entered as one of its inputs."""

    path: str
    node: Move | Pool
    position: int
    inputs: tuple[Value, ...]
    output: Value

    def carry(self, part: Tensor) -> Tensor:
        """Apply the operator to ``[1, B, *shape]``, with zeros as its other inputs."""
        leading = part.shape[:2]
        return self.node.forward(
            *(
                part if index == self.position else part.new_zeros(*leading, *value.shape)
                for index, value in enumerate(self.inputs)
            )
        )


@dataclass(frozen=True, eq=False)
class _Route:
    """A way from a node that computes integers to a reader of them."""

    root: str
    steps: tuple[_Step, ...] = ()


class _LevelGraph:
    """The nodes of a lowered network that give levels, or integers made of levels."""

    def __init__(self, network: LoweredNetwork) -> None:
        self.values = network.values()
        self.nodes: dict[str, Operator] = {ref.path: node for ref, node in network.nodes()}
        self.inputs = {ref.path: ref.inputs for ref in network.plan}
        self.timesteps = network.timesteps

    def is_carried(self, path: str) -> bool:
        """Return whether a node moves or pools what others compute."""
        return isinstance(self.nodes.get(path), Move | Pool)

    def is_pool(self, path: str, kind: PoolKind) -> bool:
        """Return whether a node is a pool of this kind."""
        node = self.nodes.get(path)
        return isinstance(node, Pool) and node.kind == kind

    def has_sums(self, path: str) -> bool:
        """Return whether sum pools lie between a value and the nodes that compute it."""
        return any(isinstance(node, Pool) and node.kind == "sum" for node in self.behind(path))

    def routes(self, path: str) -> list[_Route]:
        """List the ways on which integers come to the output of a node."""
        node = self.nodes.get(path)
        if not isinstance(node, Move | Pool) or self._mixes_sources(path):
            return [_Route(path)]
        names = self.inputs[path]
        inputs = tuple(self.values[name] for name in names)
        return [
            replace(
                route, steps=(*route.steps, _Step(path, node, index, inputs, self.values[path]))
            )
            for index, name in enumerate(names)
            for route in self.routes(name)
        ]

    def sources(self, path: str) -> set[str]:
        """Return the neurons that decide a value, and whatever else it is made of."""
        node = self.nodes.get(path)
        if isinstance(node, Move | Pool | Matmul | Multiply):
            return set[str]().union(*map(self.sources, self.inputs[path]))
        return {path}

    def needs(self, path: str) -> tuple[str, ...] | None:
        """Return the neurons that decide a value, in running order; None if others do as well."""
        sources = self.sources(path)
        if not all(isinstance(self.nodes.get(name), LevelNeuron) for name in sources):
            return None
        return tuple(name for name in self.nodes if name in sources)

    def evaluate(self, path: str, levels: Mapping[str, Tensor]) -> Tensor:
        """Return a value ``[1, B, *shape]``, given the levels ``[B, *n]`` of its neurons."""
        if path in levels:
            return levels[path].unsqueeze(0)
        return self.nodes[path].forward(
            *(self.evaluate(name, levels) for name in self.inputs[path])
        )

    def behind(self, path: str) -> Iterator[Operator]:
        """Yield the operators that move or pool values up to a path, the last one first."""
        if self.is_carried(path):
            yield self.nodes[path]
            for name in self.inputs[path]:
                yield from self.behind(name)

    def computed_mask(self, path: str) -> Tensor:
        """Return ``[*shape]``: 1 where a value is computed, 0 where a zero was put."""
        return self._ones(path).reshape(self.values[path].shape)

    def _ones(self, path: str) -> Tensor:
        value = self.values[path]
        if not self.is_carried(path):
            leading = (1, 1) if value.has_time else (1,)
            return torch.ones(*leading, *value.shape, dtype=torch.uint8)
        carried = self.nodes[path].forward(*map(self._ones, self.inputs[path]))
        return (carried != 0).to(torch.uint8)

    def _mixes_sources(self, path: str) -> bool:
        """Return whether a max pool may compare levels of several inputs of a concatenation."""
        if not self.is_pool(path, "max"):
            return False
        was_rearranged = False
        for before in self.behind(self.inputs[path][0]):
            was_rearranged |= isinstance(before, Rearrange)
            if isinstance(before, Concat) and (before.axis > 0 or was_rearranged):
                return True
        return False


def _routes_into(graph: _LevelGraph, path: str, found: Connectivity) -> list[_Route]:
    """List the ways of levels into a synapse; none if it reads real numbers or counts as such."""
    (entering,) = graph.inputs[path]
    routes = graph.routes(entering)
    if graph.values[entering].max_level is None or all(r.root == INPUT for r in routes):
        return []
    if any(graph.needs(route.root) is None for route in routes):
        found.untracked.append(f"input joined with levels into {path}")
        return []
    for route in routes:
        for name in (route.root, *(step.path for step in route.steps)):
            if graph.is_pool(name, "max") and graph.has_sums(name):
                found.untracked.append(f"maximum of sums in {name}")
                return []
    if isinstance(graph.nodes[path], Shortcut):  # the sums of a product are counted with it
        return [r for r in routes if not isinstance(graph.nodes[r.root], Matmul | Multiply)]
    return routes


def _edge(graph: _LevelGraph, path: str, node: Weighted, route: _Route) -> Edge:
    """Carry levels up to the first sum pool; the fan-out is that of everything from there on."""
    is_sum = [graph.is_pool(step.path, "sum") for step in route.steps]
    first = [*is_sum, True].index(True)
    reach = _fan_out(node, graph.values[graph.inputs[path][0]], is_behind_sum=any(is_sum))
    for step in reversed(route.steps[first:]):
        reach = _through(reach, step, path)
    carried = route.steps[:first]
    while not any(is_sum) and carried and _keeps_counts(carried[-1].node, node):
        carried = carried[:-1]

    def carry(levels: Mapping[str, Tensor]) -> Tensor:
        if not carried and route.root in levels:
            return levels[route.root]
        part = graph.evaluate(route.root, levels)
        for step in carried:
            part = step.carry(part)
        return part.squeeze(0)  # [B, *n]

    is_identity = isinstance(node, Shortcut)
    return Edge(
        source=route.root,
        target=path.rpartition(".")[0] if is_identity else path,
        is_identity=is_identity,
        needs=graph.needs(route.root) or (),
        carry=carry,
        fan_out=reach.fan_out(),
    )


def _keeps_counts(move: Operator, reader: Weighted) -> bool:
    """Return whether a reader counts the same without the move before it."""
    if isinstance(move, Concat) and move.axis == 0:
        return True
    is_conv = isinstance(reader, Synapse) and not reader.is_linear
    return not is_conv and isinstance(move, Concat | Rearrange | ZeroPad)


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


def _through(reach: FanOutMap, step: _Step, target: str) -> FanOutMap:
    """Take a fan-out through a sum pool, or through a move behind one."""
    node, (_, *space) = step.node, step.inputs[step.position].shape
    if isinstance(node, Pool):
        return reach.through_avg_pool(
            space, kernel=node.kernel, stride=node.stride, padding=node.padding
        )
    if not reach.axes and isinstance(node, Rearrange):
        return reach  # a linear layer reads every value wherever it is
    cells = _moved_axes(step)
    if cells is None:
        raise CountError(
            f"{step.path} moves sums of levels between channels and positions, or leaves some out, "
            f"before {target}, which cannot be counted; move the levels before they are summed"
        )
    return reach.through(cells)


def _moved_axes(step: _Step) -> list[Tensor] | None:
    """Return for every spatial axis which position moves to which, ``[positions, positions]``.

    None if an axis does not stay what it is, or if channels are left out.
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
    mask = graph.computed_mask(entering).long()
    macs = int((mask * _fan_out(node, value).fan_out()).sum())
    has_gaps = any(isinstance(n, Upsample) and n.fill == "zeros" for n in graph.behind(entering))
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


def _add_product(
    graph: _LevelGraph, path: str, node: Matmul | Multiply, found: Connectivity
) -> None:
    """Add a product of levels, or list what is not counted of it."""
    names = graph.inputs[path]
    if any(map(graph.has_sums, names)):
        found.uncounted.append(f"additions of the pools before {path}")
    needs = graph.needs(path)
    if needs is None:
        found.uncounted.append(f"{node.op} in {path}, which reads the network's input")
        return
    left, right = (graph.values[name] for name in names)
    is_left_integer = (left.max_level or 0) > (right.max_level or 0)
    size = graph.values[path].size * (left.shape[2] if isinstance(node, Matmul) else 1)

    def count(levels: Mapping[str, Tensor]) -> tuple[int, int, int]:
        operands = [graph.evaluate(name, levels).long().abs() for name in names]
        bits = [_popcount(operand) for operand in operands]
        serial = [
            (operand != 0).long() if is_left == is_left_integer else bit
            for operand, bit, is_left in zip(operands, bits, (True, False), strict=True)
        ]
        return _num_pairs(node, operands), _num_pairs(node, bits), _num_pairs(node, serial)

    found.products.append(LevelProduct(name=path, needs=needs, dense=size, count=count))


def _num_pairs(node: Operator, operands: Sequence[Tensor]) -> int:
    """Sum the products of all numbers that meet."""
    left, right = operands
    if isinstance(node, Matmul):  # [..., rows, n] and [..., n, columns] meet along n
        left, right = left.sum(-2), right.sum(-1)
    return int((left * right).sum())


def _popcount(values: Tensor) -> Tensor:
    """Count the non-zero bits of integers of up to 32 bits."""
    return popcount(values.to(torch.int32).unsqueeze(-1).view(torch.uint8)).sum(-1)
