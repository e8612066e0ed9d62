"""``LoweredNetwork``: a typed graph of operators under the paths of the trained modules.

What a node gives follows from the shape rules of :mod:`lbq.graph.operators`, and how large its
integers get from their bound rules; everything that runs, writes or counts a lowered network reads
:meth:`LoweredNetwork.values` and :func:`prove`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lbq.errors import BoundError, LoweringError, NonFiniteError, ShapeError, TimeError
from lbq.graph.operators import (
    PIXEL_MAX,
    Bound,
    GraphError,
    IntegerNeuron,
    Interval,
    LevelNeuron,
    Multiplying,
    Operator,
    Product,
    Readout,
    Value,
)
from lbq.graph.operators.level_neuron import membrane_intervals

INPUT = "input"
"""The path that stands for the network's input."""


@dataclass(frozen=True)
class NodeRef:
    """A node of the running order: its path, and the paths that it reads."""

    path: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often an integer network and the real-valued network it was made of agree."""

    samples: int
    """Calibration samples that both ran on."""
    answers: float
    """Share of samples whose largest logit is the same."""
    levels: float
    """Share of levels that are equal, of all neurons and timesteps."""


class LoweredNetwork(nn.Module):
    """A network of :mod:`lbq.graph.operators`; torch runs, compiles and exports it.

    Its neurons keep the paths of the trained network.

    Args:
        timesteps: number of timesteps (T).
        input_shape: shape of one sample at one instant, channels first: ``(C, H, W)``, ``(C, L)``
            or ``(features,)``.
        takes_frames: whether it takes ``[T, B, ...]`` instead of static inputs ``[B, ...]``.
        logit_scale: value of one unit of an integer network's outputs; None for real outputs.
        origin: provenance as JSON data: a recipe, an accuracy.

    Attributes:
        agreement: what :func:`lbq.to_fixed_point` measured on calibration inputs; None if it had
            none, and for a network that was loaded from a file.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> net.timesteps, net.is_integer, len(list(net.neurons()))
        (2, False, 19)
    """

    def __init__(
        self,
        *,
        timesteps: int,
        input_shape: tuple[int, ...],
        takes_frames: bool,
        logit_scale: float | None = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.timesteps, self.input_shape = timesteps, tuple(input_shape)
        self.takes_frames, self.logit_scale = takes_frames, logit_scale
        self.origin = dict(origin or {})
        self.plan: list[NodeRef] = []
        self.agreement: Agreement | None = None
        self._proof: tuple[Snapshot, dict[str, Bound]] | None = None

    @property
    def is_integer(self) -> bool:
        """Whether it computes with integers only."""
        return self.logit_scale is not None

    def add(self, path: str, node: Operator, *inputs: str) -> str:
        """Append a node that reads these paths; return its path, made unique."""
        known = {INPUT, *(ref.path for ref in self.plan)}
        unknown = [name for name in inputs if name not in known]
        if unknown:
            raise LoweringError(f"{path} reads {', '.join(unknown)}, which is not before it")
        first, dot, rest = path.partition(".")
        if hasattr(self, first) and first not in self._modules:  # "neurons", "values" and so on
            path = f"{first}_{dot}{rest}"
        unique, number = path, 2
        while unique in known or self._is_taken(unique):
            unique, number = f"{path}_{number}", number + 1
        *folders, name = unique.split(".")
        parent: nn.Module = self
        for folder in folders:
            if folder not in parent._modules:  # pyright: ignore[reportPrivateUsage]
                parent.add_module(folder, nn.Module())
            parent = parent.get_submodule(folder)
        parent.add_module(name, node)
        self.plan.append(NodeRef(unique, inputs))
        return unique

    def nodes(self) -> Iterator[tuple[NodeRef, Operator]]:
        """Yield every node with its reference, in running order."""
        for ref in self.plan:
            node = self.get_submodule(ref.path)
            assert isinstance(node, Operator)
            yield ref, node

    @property
    def outputs(self) -> tuple[str, ...]:
        """Paths of the readouts that the network returns, in order."""
        read = {name for ref in self.plan for name in ref.inputs}
        return tuple(
            ref.path
            for ref, node in self.nodes()
            if isinstance(node, Readout) and ref.path not in read
        )

    def remove_unread(self, kept: Iterable[str] | None = None) -> None:
        """Remove the nodes that these paths, by default the outputs, do not depend on."""
        needed = set(self.outputs if kept is None else kept)
        for ref in reversed(self.plan):
            if ref.path in needed:
                needed.update(ref.inputs)
        for ref in self.plan:
            if ref.path not in needed:
                parent, _, name = ref.path.rpartition(".")
                del self.get_submodule(parent)._modules[name]  # pyright: ignore[reportPrivateUsage]
        self.plan = [ref for ref in self.plan if ref.path in needed]

    def values(self, *, max_size: int | None = None) -> dict[str, Value]:
        """Return what every node gives, and the input; raise if a node cannot read its inputs.

        Args:
            max_size: raise for values with more numbers per sample and timestep.
        """
        largest = PIXEL_MAX if self.is_integer else None
        found = {
            INPUT: Value(shape=self.input_shape, has_time=self.takes_frames, max_level=largest)
        }
        for ref, node in self.nodes():
            inputs = [found[name] for name in ref.inputs]
            for name, value in zip(ref.inputs, inputs, strict=True):
                if max_size is not None and value.size > max_size:
                    raise GraphError("size", f"{name} gives values of shape {value.shape}")
            try:
                found[ref.path] = node.infer(inputs, timesteps=self.timesteps)
            except GraphError as error:
                raise GraphError(error.rule, f"{ref.path}: {error}") from None
        return found

    def example(self, batch: int = 1) -> Tensor:
        """Return zeros of the network's input shape."""
        shape = (batch, *self.input_shape)
        if self.takes_frames:
            shape = (self.timesteps, *shape)
        floats = (buffer.dtype for buffer in self.buffers() if buffer.is_floating_point())
        real = next(floats, torch.float32)
        return torch.zeros(shape, dtype=torch.uint8 if self.is_integer else real)

    def forward(self, inputs: Tensor, multiply: Product | None = None) -> Any:
        """Return ``[B, classes]``; of several outputs, a tuple.

        ``multiply`` replaces the dense product of levels with weights and with levels.
        """
        values = {INPUT: inputs}
        last_use = {name: index for index, ref in enumerate(self.plan) for name in ref.inputs}
        for index, (ref, node) in enumerate(self.nodes()):
            arguments = [values[name] for name in ref.inputs]
            multiplies = isinstance(node, Multiplying) and INPUT not in ref.inputs
            values[ref.path] = node(*arguments, multiply) if multiplies else node(*arguments)
            for name in ref.inputs:
                if last_use[name] == index:
                    values.pop(name, None)
        answers = tuple(values[path] for path in self.outputs)
        return answers[0] if len(answers) == 1 else answers

    def check_input(self, inputs: Tensor) -> None:
        """Raise for inputs of another shape, length or dtype than the network takes."""
        check_shape(inputs, self.input_shape, takes_frames=self.takes_frames)
        if self.takes_frames and len(inputs) != self.timesteps:
            raise TimeError(
                f"this network was lowered for {self.timesteps} timesteps, got {len(inputs)}; "
                f"lower it with an example of that length"
            )
        self.check_values(inputs)

    def check_values(self, inputs: Tensor) -> None:
        """Raise for inputs of another dtype than the network takes, and for NaNs."""
        if self.is_integer:
            check_bytes(inputs)
        elif not bool(torch.isfinite(inputs).all()):
            raise NonFiniteError(
                "the input holds a NaN or an infinity; check what prepares the inputs"
            )

    def extra_repr(self) -> str:
        """Show the input and the size."""
        what = "frames" if self.takes_frames else "static inputs"
        return f"{what} of {self.input_shape}, timesteps={self.timesteps}, {len(self.plan)} nodes"

    def neurons(self) -> Iterator[tuple[str, LevelNeuron]]:
        """Yield every neuron with its path, in running order."""
        for ref, node in self.nodes():
            if isinstance(node, LevelNeuron):
                yield ref.path, node

    def _is_taken(self, path: str) -> bool:
        try:
            self.get_submodule(path)
        except AttributeError:
            return False
        return True


def check_shape(inputs: Tensor, shape: tuple[int, ...], *, takes_frames: bool) -> None:
    """Raise unless the inputs are samples of this shape, with time first for frames."""
    expected = ("T", "B", *shape) if takes_frames else ("B", *shape)
    if inputs.dim() != len(expected) or tuple(inputs.shape[-len(shape) :]) != shape:
        raise ShapeError(
            f"this network takes [{', '.join(map(str, expected))}], got {tuple(inputs.shape)}"
        )


def check_bytes(inputs: Tensor) -> None:
    """Raise unless the inputs are uint8, as integer networks take them."""
    if inputs.dtype != torch.uint8:
        raise ShapeError(
            f"an integer network takes pixels or event counts as uint8, got {inputs.dtype}"
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The buffers of a network, their version counters, and the settings of its nodes."""

    buffers: tuple[Tensor, ...]
    versions: tuple[int, ...]
    settings: tuple[Any, ...]

    @classmethod
    def of(cls, network: LoweredNetwork) -> "Snapshot":
        """Take a snapshot of a network."""
        found = tuple(buffer for _, node in network.nodes() for buffer in node.buffers())
        nodes = (
            (ref, *(getattr(node, name) for name in node.settings)) for ref, node in network.nodes()
        )
        return cls(found, tuple(map(_version, found)), (network.timesteps, *nodes))

    def matches(self, network: LoweredNetwork) -> bool:
        """Return whether no node, buffer or setting was changed since."""
        now = Snapshot.of(network)
        return (self.settings, self.versions) == (now.settings, now.versions) and all(
            mine is theirs for mine, theirs in zip(self.buffers, now.buffers, strict=True)
        )


def _version(buffer: Tensor) -> int:
    """Return the version counter of a tensor; inference tensors have none."""
    return 0 if buffer.is_inference() else buffer._version


def prove(network: LoweredNetwork) -> dict[str, Bound]:
    """Bound every accumulator and membrane of an integer network; raise if one can overflow.

    Levels are not negative, so the sums of a synapse lie between the largest level times its
    negative weights and the largest level times its positive ones, in any order of additions.
    Membranes are bounded timestep by timestep. The proof itself cannot overflow: sums are Python
    integers. It is stored until the network changes.

    Returns:
        For every node that computes, the range of its integers, partial sums included.
    """
    known = network._proof  # pyright: ignore[reportPrivateUsage]
    if known is not None and known[0].matches(network):
        return known[1]
    bounds: dict[str, Bound] = {}
    for path, (inner, _) in _intervals(network).items():
        if inner is not None:
            low, high = inner.extremes()
            bounds[path] = Bound(path=path, low=low, high=high)
    network._proof = (Snapshot.of(network), bounds)  # pyright: ignore[reportPrivateUsage]
    return bounds


def output_ranges(network: LoweredNetwork) -> dict[str, tuple[int, int]]:
    """Return the smallest and largest integer that every node of an integer network gives."""
    return {path: outer.extremes() for path, outer in output_intervals(network).items()}


def output_intervals(network: LoweredNetwork) -> dict[str, Interval]:
    """Return the interval of every node's output in an integer network, per channel."""
    return {path: outer for path, (_, outer) in _intervals(network).items()}


def membrane_bounds(network: LoweredNetwork) -> dict[str, list[Interval]]:
    """Return the interval of every neuron's membranes, per timestep and channel."""
    outer = output_intervals(network)
    return {
        ref.path: membrane_intervals(node, outer[ref.inputs[0]], network.timesteps)[0]
        for ref, node in network.nodes()
        if isinstance(node, IntegerNeuron)
    }


def _intervals(network: LoweredNetwork) -> dict[str, tuple[Interval | None, Interval]]:
    """Return, for each node, the interval of all that it computes and of its output."""
    values = network.values()
    found: dict[str, tuple[Interval | None, Interval]] = {INPUT: (None, Interval.of(0, PIXEL_MAX))}
    for ref, node in network.nodes():
        if True not in node.networks:
            raise BoundError(f"{ref.path} ({type(node).__name__}) is no integer operator")
        entering = [found[name][1] for name in ref.inputs]
        inputs = [values[name] for name in ref.inputs]
        try:
            inner, outer = node.bound(entering, inputs, timesteps=network.timesteps)
        except BoundError as error:
            raise BoundError(f"{ref.path}: {error}") from None
        if inner is not None:
            low, high = inner.extremes()
            _ = Bound(path=ref.path, low=low, high=high).bits  # raises here, with the path
        found[ref.path] = inner, outer
    del found[INPUT]
    return found
