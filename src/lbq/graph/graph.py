"""``LoweredNetwork``: a network as data, a tuple of operators under the paths of trained modules.

The shape rules of :mod:`lbq.graph.operators` give the shape of every node's output, the bound rules
the range of its integers. All code that runs, writes or counts a lowered network takes them from
:meth:`LoweredNetwork.values` and :func:`prove`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lbq.errors import BoundError, LoweringError, NonFiniteError, ShapeError, TimeError
from lbq.graph.operators import (
    PIXEL_MAX,
    Bound,
    GraphError,
    IntegerNeuron,
    Interval,
    LevelNeuron,
    Operator,
    Readout,
    Value,
)
from lbq.graph.operators.level_neuron import membrane_intervals

INPUT = "input"
"""The path that stands for the network's input."""


class Node(NamedTuple):
    """An operator of the network, its path and its inputs."""

    path: str
    operator: Operator
    inputs: tuple[str, ...]
    """Paths of the nodes whose outputs it reads."""

    def compute(self, *values: Tensor) -> Tensor:
        """Return the output for these inputs."""
        return self.operator(*values)


Compute = Callable[..., Tensor]
"""``compute(node, *values)`` returns the output of a node, as :meth:`Node.compute` does."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often an integer network agrees with the real-valued network that it was made from."""

    samples: int
    """Number of calibration samples."""
    answers: float
    """Share of samples whose largest logit is the same."""
    levels: float
    """Share of equal levels, over all neurons and timesteps."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LoweredNetwork:
    """A network of :mod:`lbq.graph.operators`; calling it runs it in torch.

    It and its tensors are immutable: :func:`dataclasses.replace` makes a changed copy. Its neurons
    keep the paths of the trained network.

    Args:
        nodes: the nodes in execution order.
        timesteps: number of timesteps (T).
        input_shape: shape of one sample at one instant, channels first: ``(C, H, W)``, ``(C, L)``
            or ``(features,)``.
        takes_frames: whether it takes ``[T, B, ...]`` instead of static inputs ``[B, ...]``.
        logit_scale: value of one unit of an integer network's outputs; None for real outputs.
        origin: provenance as JSON data: a recipe, an accuracy.
        agreement: what :func:`lbq.to_fixed_point` measured on calibration inputs; None without
            calibration inputs, and for a network loaded from a file.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> net.timesteps, net.is_integer, len(list(net.neurons()))
        (2, False, 19)
    """

    nodes: tuple[Node, ...]
    timesteps: int
    input_shape: tuple[int, ...]
    takes_frames: bool
    logit_scale: float | None = None
    origin: dict[str, Any] = field(default_factory=dict[str, Any])
    agreement: Agreement | None = None

    @property
    def is_integer(self) -> bool:
        """Whether it computes with integers only."""
        return self.logit_scale is not None

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """The operators by path, in execution order."""
        return {node.path: node.operator for node in self.nodes}

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Paths of the readouts that the network returns, in order."""
        return _outputs(self.nodes)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, by the path of its node and its name in the operator."""
        found = (
            (f"{path}.{role}", getattr(operator, role))
            for path, operator, _ in self.nodes
            for role in operator.tensors()
        )
        return {name: tensor for name, tensor in found if tensor is not None}

    def values(self) -> dict[str, Value]:
        """Describe the input and every node's output; raise if a node cannot read its inputs."""
        return self._values

    @cached_property
    def _values(self) -> dict[str, Value]:
        return self.infer_values()

    def infer_values(self, *, max_size: int | None = None) -> dict[str, Value]:
        """Return :meth:`values`; raise if one is larger than this, per sample and timestep."""
        largest = PIXEL_MAX if self.is_integer else None
        found = {
            INPUT: Value(shape=self.input_shape, has_time=self.takes_frames, max_level=largest)
        }
        for path, operator, names in self.nodes:
            inputs = [found[name] for name in names]
            for name, value in zip(names, inputs, strict=True):
                if max_size is not None and value.size > max_size:
                    raise GraphError("size", f"{name} gives values of shape {value.shape}")
            try:
                found[path] = operator.infer(inputs, timesteps=self.timesteps)
            except GraphError as error:
                raise GraphError(error.rule, f"{path}: {error}") from None
        return found

    @cached_property
    def proof(self) -> dict[str, tuple[Bound | None, Interval]]:
        """For every node, the bound of all its integers and the interval of its output."""
        found: dict[str, tuple[Bound | None, Interval]] = {INPUT: (None, Interval.of(0, PIXEL_MAX))}
        for path, operator, names in self.nodes:
            if True not in operator.networks:
                raise BoundError(f"{path} ({type(operator).__name__}) is not an integer operator")
            entering = [found[name][1] for name in names]
            inputs = [self._values[name] for name in names]
            try:
                inner, outer = operator.bound(entering, inputs, timesteps=self.timesteps)
            except BoundError as error:
                raise BoundError(f"{path}: {error}") from None
            bound = None
            if inner is not None:
                low, high = inner.extremes()
                bound = Bound(path=path, low=low, high=high)
                _ = bound.bits  # raises here
            found[path] = bound, outer
        del found[INPUT]
        return found

    def to(self, target: torch.device | torch.dtype | str) -> "LoweredNetwork":
        """Return the network on another device, or with another floating-point type."""

        def moved(tensor: Tensor) -> Tensor:
            is_other = isinstance(target, torch.dtype) and not tensor.is_floating_point()
            return tensor if is_other else tensor.to(target)

        nodes = (node._replace(operator=node.operator.with_tensors(moved)) for node in self.nodes)
        return replace(self, nodes=tuple(nodes))

    def double(self) -> "LoweredNetwork":
        """Return the network with real numbers in float64."""
        return self.to(torch.float64)

    def example(self, batch: int = 1) -> Tensor:
        """Return zeros of the network's input shape."""
        shape = (batch, *self.input_shape)
        if self.takes_frames:
            shape = (self.timesteps, *shape)
        floats = (tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point())
        real = next(floats, torch.float32)
        return torch.zeros(shape, dtype=torch.uint8 if self.is_integer else real)

    def __call__(self, inputs: Tensor, compute: Compute = Node.compute) -> Any:
        """Return the logits ``[B, classes]``; a tuple for several outputs.

        ``compute`` is called for every node in place of :meth:`Node.compute`.
        """
        values = {INPUT: inputs}
        last_use = {name: index for index, node in enumerate(self.nodes) for name in node.inputs}
        for index, node in enumerate(self.nodes):
            values[node.path] = compute(node, *(values[name] for name in node.inputs))
            for name in node.inputs:
                if last_use[name] == index:
                    values.pop(name, None)
        answers = tuple(values[path] for path in self.outputs)
        return answers[0] if len(answers) == 1 else answers

    def check_input(self, inputs: Tensor) -> None:
        """Raise for inputs of the wrong shape, length or dtype, and for NaNs."""
        check_shape(inputs, self.input_shape, takes_frames=self.takes_frames)
        if self.takes_frames and len(inputs) != self.timesteps:
            raise TimeError(
                f"this network was lowered for {self.timesteps} timesteps, got {len(inputs)}; "
                f"lower it with an example of that length"
            )
        self.check_values(inputs)

    def check_values(self, inputs: Tensor) -> None:
        """Raise for inputs of the wrong dtype, and for NaNs."""
        if self.is_integer:
            check_bytes(inputs)
        elif not bool(torch.isfinite(inputs).all()):
            raise NonFiniteError(
                "the input holds a NaN or an infinity; check the code that prepares the inputs"
            )

    def neurons(self) -> Iterator[tuple[str, LevelNeuron]]:
        """Yield every neuron with its path, in execution order."""
        for path, operator in self.operators.items():
            if isinstance(operator, LevelNeuron):
                yield path, operator

    def __repr__(self) -> str:
        """Show the inputs and the size of the network."""
        what = "frames" if self.takes_frames else "static inputs"
        size = f"timesteps={self.timesteps}, {len(self.nodes)} nodes"
        return f"LoweredNetwork({what} of {self.input_shape}, {size})"


@dataclass(kw_only=True, eq=False)
class GraphBuilder:
    """Builds a graph node by node; takes the arguments of :class:`LoweredNetwork`."""

    timesteps: int
    input_shape: tuple[int, ...]
    takes_frames: bool
    logit_scale: float | None = None
    origin: dict[str, Any] = field(default_factory=dict[str, Any])
    nodes: list[Node] = field(default_factory=list[Node])

    def add(self, path: str, operator: Operator, *inputs: str) -> str:
        """Append a node that reads these paths; return its path after making it unique."""
        known = {INPUT, *(node.path for node in self.nodes)}
        unknown = [name for name in inputs if name not in known]
        if unknown:
            raise LoweringError(f"{path} reads {', '.join(unknown)}, which does not come before it")
        unique, number = path, 2
        while unique in known:
            unique, number = f"{path}_{number}", number + 1
        self.nodes.append(Node(unique, operator, inputs))
        return unique

    def remove_unread(self, kept: Iterable[str] | None = None) -> None:
        """Remove every node that none of these paths, by default the outputs, depends on."""
        needed = set(_outputs(self.nodes) if kept is None else kept)
        for node in reversed(self.nodes):
            if node.path in needed:
                needed.update(node.inputs)
        self.nodes = [node for node in self.nodes if node.path in needed]

    def finish(self) -> LoweredNetwork:
        """Return the graph; raise if a node cannot read its inputs."""
        made = LoweredNetwork(
            nodes=tuple(self.nodes),
            timesteps=self.timesteps,
            input_shape=self.input_shape,
            takes_frames=self.takes_frames,
            logit_scale=self.logit_scale,
            origin=self.origin,
        )
        made.values()
        return made


def _outputs(nodes: Sequence[Node]) -> tuple[str, ...]:
    read = {name for node in nodes for name in node.inputs}
    return tuple(
        node.path for node in nodes if isinstance(node.operator, Readout) and node.path not in read
    )


def check_shape(inputs: Tensor, shape: tuple[int, ...], *, takes_frames: bool) -> None:
    """Raise unless the inputs are samples of this shape, with time first for frames."""
    expected = ("T", "B", *shape) if takes_frames else ("B", *shape)
    if inputs.dim() != len(expected) or tuple(inputs.shape[-len(shape) :]) != shape:
        raise ShapeError(
            f"this network takes [{', '.join(map(str, expected))}], got {tuple(inputs.shape)}"
        )


def check_bytes(inputs: Tensor) -> None:
    """Raise unless the inputs are uint8, the only dtype that integer networks take."""
    if inputs.dtype != torch.uint8:
        raise ShapeError(
            f"an integer network takes pixels or event counts as uint8, got {inputs.dtype}"
        )


def prove(network: LoweredNetwork) -> dict[str, Bound]:
    """Bound every accumulator and membrane of an integer network; raise if one can overflow.

    In any order of additions, the partial sums of a synapse lie between the sum of its smallest
    negative products and the sum of its largest positive products. Membranes are bounded timestep
    by timestep. The proof itself cannot overflow because it adds Python integers. The result is
    cached.

    Returns:
        For every node that computes, the range of its integers, including partial sums.
    """
    return {path: bound for path, (bound, _) in network.proof.items() if bound is not None}


def output_ranges(network: LoweredNetwork) -> dict[str, tuple[int, int]]:
    """Return the smallest and largest output of every node of an integer network."""
    return {path: outer.extremes() for path, (_, outer) in network.proof.items()}


def membrane_bounds(network: LoweredNetwork) -> dict[str, list[Interval]]:
    """Return the interval of every neuron's membranes, per timestep and channel."""
    return {
        path: membrane_intervals(operator, network.proof[names[0]][1], network.timesteps)[0]
        for path, operator, names in network.nodes
        if isinstance(operator, IntegerNeuron)
    }
