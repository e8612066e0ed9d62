"""``TrainedGraph``: the graph of a trained network without lowering, to count its operations.

Operators are captured and read as in lowering, by a
:class:`~lbq.lowering.graph_reader.GraphReader`, with two differences. Every convolution and linear
layer stays a separate synapse, because nothing is folded, composed or reordered. An operator that
lowered networks do not support raises no error. Its result is real numbers, and a synapse that
reads them costs MACs.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lbq.cost.count_table import SynapseSize
from lbq.cost.fan_out import num_valid_taps
from lbq.errors import CountError, LoweringError, TimeError
from lbq.graph.capture import EXPORTED_BATCH, Call, Constant, capture
from lbq.graph.graph import INPUT
from lbq.graph.layout import BATCH, TIME, Axis, Factor, Layout
from lbq.graph.operators import Operator, Synapse, Value
from lbq.lowering import lower_einsum
from lbq.lowering.graph_reader import GraphReader, Refusal
from lbq.lowering.pool_args import per_axis
from lbq.lowering.values import ScaledInput, SymbolicValue, numbers
from lbq.neurons.batch_axis import explain_batch_axis
from lbq.neurons.neuron import Neuron

_NORMS = ("aten.batch_norm", "aten._native_batch_norm_legit_no_training")
_MATRICES = {
    **{"aten.linear": "weight", "aten.addmm": "mat2", "aten.matmul": "other"},
    **{"aten.mm": "mat2", "aten.bmm": "mat2"},
}
"""Operators that multiply by a matrix, with the name of the matrix argument."""
_ADDITIONS = ("aten.add", "aten.sub", "aten.rsub")
_PRODUCTS = (
    *("matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "dot", "vdot", "inner"),
    *("einsum", "tensordot", "bilinear", "linear", "scaled_dot_product_attention", "lstm", "gru"),
    *("rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    *("conv1d", "conv2d", "conv3d", "convolution", "_native_multi_head_attention"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "_transformer_encoder_layer_fwd"),
)
"""Operators that multiply two values of the network, or do an unknown number of products."""


class Emission(Operator):
    """A neuron; it emits levels whatever it reads.

    Args:
        name: path of the neuron in the trained network.
        shape: shape of its levels, for one sample at one timestep.
        max_level: the largest level.
        timesteps: number of timesteps of this neuron.
    """

    op = "emission"
    num_inputs = (0, 1 << 16)
    counted_as = "neuron"
    name: str
    shape: tuple[int, ...]
    _: KW_ONLY
    max_level: int
    timesteps: int

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Return the levels."""
        return Value(shape=self.shape or (1,), has_time=True, max_level=self.max_level)


class RealNumbers(Operator):
    """The result of an operator without a rule.

    Args:
        value: the description of the result.
    """

    op = "real_numbers"
    num_inputs = (0, 1 << 16)
    value: Value

    def infer(self, inputs: Sequence[Value], *, timesteps: int) -> Value:
        """Return the result."""
        return self.value


@dataclass(frozen=True)
class _Lost:
    """A tensor whose axes are unknown."""

    sources: tuple[str, ...]
    is_static: bool


@dataclass(frozen=True)
class _Results:
    """Several tensors from an operator without a rule."""

    call: Call


@dataclass(frozen=True, kw_only=True, eq=False)
class SynapseRun:
    """One call of a convolution or linear layer, for one sample."""

    size: SynapseSize
    """Size of the synapse, with the timesteps of this call."""
    instants: frozenset[int]
    """Timesteps that the input was selected from; empty if none were selected."""
    source: Call
    weight: str
    nodes: tuple[str, ...]
    """Synapses of the graph: one for each part of a sum or of a concatenation."""

    def continues(self, before: "list[SynapseRun]") -> bool:
        """Return whether this is the same synapse at another timestep, not a second use."""
        last = before[-1]
        if (self.size.name, self.size.num_weights) != (last.size.name, last.size.num_weights):
            return False
        if self.weight != last.weight:
            return False
        if not self.instants:  # reading a static input again repeats the same work
            return self.source is last.source and not last.instants
        ours = [run.instants for run in before]
        return len(self.instants) == 1 and all(seen and not seen & self.instants for seen in ours)


class TrainedGraph:
    """Reads a trained network.

    Args:
        model: any network that torch.export can export. It is not changed.
        example: an input of one sample.
        batch_axis: axis of the samples in the example.

    Attributes:
        network: the graph; :class:`Emission` stands for neurons.
        names: names of its synapses in the trained network.
        emissions: its neurons by path.
        untracked: operators that turn levels into real numbers.
        uncounted: products that are neither synapses nor products of levels.
    """

    def __init__(self, model: nn.Module, example: Tensor, *, batch_axis: int) -> None:
        self._reader = GraphReader(example, has_time=batch_axis == 1, dtype=torch.float32)
        self._context, self._builder = self._reader.context, self._reader.builder
        self._values = self._context.values
        self.names: dict[str, str] = {}
        self.untracked: list[str] = []
        self.uncounted: list[str] = []
        self._runs: list[SynapseRun] = []
        self.emissions: dict[str, Emission] = {}
        self._batch_axis = explain_batch_axis(example, batch_axis)
        self._instants: dict[str, frozenset[int]] = {INPUT: frozenset()}
        self._begins_unseen = False
        self._num_followed = 0
        try:
            captured = capture(model, example, batch_axis=batch_axis)
        except LoweringError as error:
            raise CountError(
                f"torch.export cannot read this network: {error}. {self._batch_axis}"
            ) from error
        for call in captured.calls:
            self._values[call] = self._read(call)
        self._builder.remove_unread(
            source for output in captured.outputs for source in self._sources(output)
        )
        self.network = self._builder.finish()

    def synapses(self, reads_levels: Callable[[str], bool]) -> list[SynapseSize]:
        """Return the size of every synapse, with the calls of a loop over time as one synapse.

        Args:
            reads_levels: whether levels enter a synapse of the graph.
        """
        groups: list[list[SynapseRun]] = []
        for run in self._runs:
            for group in groups:
                if run.continues(group):
                    group.append(run)
                    break
            else:
                groups.append([run])
        return [self._joined(group, reads_levels) for group in groups]

    def _joined(self, runs: list[SynapseRun], reads_levels: Callable[[str], bool]) -> SynapseSize:
        first = runs[0].size
        times = [run.size.timesteps for run in runs if run.size.timesteps is not None]
        is_known = len(times) == len(runs) and not (self._begins_unseen and first.timesteps == 1)
        known = sum(times) if is_known else None
        return replace(
            first,
            macs=sum(run.size.macs for run in runs),
            padded_macs=sum(run.size.padded_macs for run in runs),
            timesteps=known,
            inputs=sum(run.size.inputs for run in runs) // (known or 1),
            has_real_input=not any(reads_levels(node) for run in runs for node in run.nodes),
        )

    # --- calls

    def _read(self, call: Call) -> Any:
        if call.operator == "input":
            return self._reader.read(call)
        if call.operator == "lbq.neuron":
            return self._emitted(call)
        if call.operator == "aten.einsum":
            return self._einsum(call)
        sources = [self._values[source] for source in _signals(call)]
        before = len(self._builder.nodes)
        value = self._followed(call, sources)
        if value is None:
            value = self._not_followed(call)
        size = self._size(call)
        if size is not None:
            source, weight, dense, instants = size
            added = self._builder.nodes[before:]
            nodes = [node.path for node in added if isinstance(node.operator, Synapse)]
            self.names.update((path, dense.name) for path in nodes)
            run = SynapseRun(
                size=dense, instants=instants, source=source, weight=weight, nodes=tuple(nodes)
            )
            self._runs.append(run)
        return value

    def _einsum(self, call: Call) -> Any:
        """Read the operators that an einsum stands for."""
        try:
            steps = lower_einsum.steps(self._context, call)
        except LoweringError:
            return self._not_followed(call)
        for step in steps:
            self._values[step] = self._read(step)
        return self._values[steps[-1]]

    def _followed(self, call: Call, sources: list[Any]) -> Any:
        """Return the operator's result by the rules of lowering; None if it has no rule."""
        if call.operator in _NORMS:
            return None
        if any(isinstance(source, _Lost | _Results) for source in sources):
            return None
        made = self._reader.try_to_read(call)
        if isinstance(made, Refusal):
            return None
        if isinstance(made, tuple):
            return tuple(map(self._context.materialize, cast(tuple[Any, ...], made)))
        value = self._context.materialize(made)
        is_sum = call.operator in _ADDITIONS and len(sources) == 2
        is_synapse = self._matrix_or_kernel(call) is not None
        keeps = value.are_levels or is_sum or is_synapse or not any(map(_has_levels, sources))
        return value if keeps else None

    def _emitted(self, call: Call) -> SymbolicValue:
        """Add a neuron; its currents are ``[T, B, ...]``, whatever computed them."""
        assert isinstance(call.module, Neuron)
        if any(node.name == call.path for node in self.emissions.values()):
            raise CountError(
                f"the neuron {call.path} runs twice in one forward pass, so its levels cannot be "
                f"told apart; use a separate neuron for every place in the network"
            )
        if call.shape[1:2] != (EXPORTED_BATCH,):
            axes = ", ".join("B" if n == EXPORTED_BATCH else str(n) for n in call.shape)
            raise TimeError(
                f"{call.path} emits [{axes}]. A neuron takes time as the first axis and the batch, "
                f"B, as the second, so this network has no time axis. Add RepeatOverTime(T) before "
                f"the first neuron and OverTime around the layers between neurons. "
                f"{self._batch_axis}"
            )
        source, timesteps = call.arguments["currents"], call.shape[0]
        before, max_level = self._values[source], call.module.max_level
        if not isinstance(before, SymbolicValue) or not before.layout.has_time:
            self._begins_unseen |= timesteps > 1
        self._builder.timesteps = max(self._builder.timesteps, timesteps)
        node = Emission(call.path, call.shape[2:], max_level=max_level, timesteps=timesteps)
        path = self._context.add(call.path, node, *self._sources(source))
        self.emissions[path] = node
        shape = call.shape[2:] or (1,)
        layout = Layout.of_node(shape, batch=EXPORTED_BATCH, timesteps=timesteps)
        layout = replace(layout, axes=layout.axes[: len(call.shape)])
        term = ScaledInput(source=path, shape=shape, scale=numbers(1.0), max_size=max_level)
        return SymbolicValue(terms=(term,), layout=layout)

    def _not_followed(self, call: Call) -> Any:
        """Return real numbers in place of the operator's result."""
        signals = _signals(call)
        name = f"{call.operator.removeprefix('aten.')} in {call.place}"
        if any(_has_levels(self._values[signal]) for signal in signals):
            self.untracked.append(name)
        is_product = call.operator.removeprefix("aten.") in _PRODUCTS
        if is_product and self._matrix_or_kernel(call) is None:
            self.uncounted.append(name)
        if call.operator == "aten.unbind":
            return self._unbound(call, signals[0])
        if not call.shape and call.readers and all(r.operator == "getitem" for r in call.readers):
            return _Results(call)
        origin = call
        if call.operator == "getitem":
            results = self._values[call.arguments["0"]]
            origin = results.call if isinstance(results, _Results) else call
        return self._real(origin, call.shape)

    def _real(self, call: Call, shape: tuple[int, ...]) -> SymbolicValue | _Lost:
        """Return real numbers of this shape as the result of a call."""
        signals = _signals(call)
        sources = tuple(dict.fromkeys(s for signal in signals for s in self._sources(signal)))
        values = [self._values[signal] for signal in signals]
        layouts = [value.layout for value in values if isinstance(value, SymbolicValue)]
        times = {self._times(signal) for signal in signals}
        is_static = times <= {frozenset()} and not any(map(_may_have_time, values))
        layout, instants = self._layout(call, shape, layouts), frozenset[int]()
        if layout is None and is_static and shape.count(EXPORTED_BATCH) == 1:
            axes = [(Factor(BATCH, n),) if n == EXPORTED_BATCH else () for n in shape]
            layout = _on_own_node(axes, shape)
        is_joined = len(times) > 1 and any(each.shape != shape for each in layouts)
        if layout is None or (is_joined and not layout.has_time):
            return _Lost(sources, is_static)
        if call.operator == "aten.select" and layouts[0].has_time and not layout.has_time:
            axis = call.arguments["dim"]
            instants = frozenset({call.arguments["index"] % layouts[0].shape[axis]})
        value = Value(shape=layout.node, has_time=layout.has_time, max_level=None)
        path = self._add_real(call, value, sources)
        if instants:
            self._instants[path] = instants
        return self._context.given(path, layout)

    def _unbound(self, call: Call, signal: Call) -> Any:
        """Return the timesteps of a tensor one by one."""
        value, axis = self._values[signal], call.arguments["dim"]
        if not isinstance(value, SymbolicValue) or not _is_time(value.layout.axes[axis]):
            return _Results(call)
        kept = value.layout.without({axis % len(value.layout.axes)})
        layout = _on_own_node(kept.axes, kept.shape)
        if layout is None:
            return _Results(call)
        parts: list[SymbolicValue] = []
        for t in range(signal.shape[axis]):
            made = Value(shape=layout.node, has_time=layout.has_time, max_level=None)
            path = self._add_real(call, made, self._sources(signal))
            self._instants[path] = frozenset({t})
            parts.append(self._context.given(path, layout))
        return tuple(parts)

    def _layout(self, call: Call, shape: tuple[int, ...], layouts: list[Layout]) -> Layout | None:
        """Return the axes of a result; None if they are unknown."""
        timed = sorted(layouts, key=lambda layout: not layout.has_time)
        for layout in timed:
            if layout.shape == shape:
                return layout
        dims = call.arguments.get("dim")
        for layout in timed:
            rank, first = len(layout.axes), layout.first_own
            if dims is not None and call.operator not in ("aten.stack", "aten.cat"):
                given = [dims] if isinstance(dims, int) else dims
                kept = layout.without({axis % rank for axis in given})
                if kept.shape == shape:
                    return _on_own_node(kept.axes, shape)
            if shape[:first] == layout.shape[:first] and not layout.content(*range(first)):
                rest = len(shape) - first
                return _on_own_node((*layout.axes[:first], *[()] * rest), shape)
        for layout in timed:
            once = layout.shape[1:] if layout.shape[:1] == (1,) else layout.shape
            if layout.is_static and shape[1:] == once and self._may_begin(call, shape[0]):
                axes = ((Factor(TIME, shape[0]),), *layout.axes[len(layout.axes) - len(once) :])
                return Layout(axes, layout.node)
        return None

    def _may_begin(self, call: Call, timesteps: int) -> bool:
        """Return whether this call may create time: stack timesteps, or repeat a static value."""
        times = [self._times(signal) for signal in _signals(call)]
        in_order = [frozenset({t}) for t in range(timesteps)]
        return not any(times) or times == in_order

    # --- what a synapse is

    def _matrix_or_kernel(self, call: Call) -> Constant | None:
        """Return the weights of a convolution or of a linear layer, else None."""
        name = call.operator.removeprefix("aten.")
        key = _MATRICES.get(call.operator, "weight" if name.startswith("conv") else "")
        weight = call.arguments.get(key)
        if not isinstance(weight, Constant):
            return None
        return weight if call.operator not in _MATRICES or len(weight.shape) == 2 else None

    def _size(self, call: Call) -> tuple[Call, str, SynapseSize, frozenset[int]] | None:
        """Return a synapse's input, its weight's name, its size, and its input's timesteps."""
        weight = self._matrix_or_kernel(call)
        if weight is None:
            return None
        key = {"aten.addmm": "mat1", "aten.linear": "input"}.get(call.operator, "self")
        source = call.arguments["input" if key not in call.arguments else key]
        if not isinstance(source, Call):
            return None
        is_linear = call.operator in _MATRICES
        if is_linear:
            inner = weight.shape[1] if call.operator == "aten.linear" else weight.shape[0]
            macs = padded = math.prod(call.shape) * inner
        else:
            macs, padded = _convolution_macs(call, source, weight.shape)
        instants = self._times(source)
        size = SynapseSize(
            name=self._context.path(call, "linear" if is_linear else "conv"),
            macs=macs // EXPORTED_BATCH,
            padded_macs=padded // EXPORTED_BATCH,
            timesteps=self._timesteps(source, is_linear=is_linear),
            num_weights=math.prod(weight.shape),
            inputs=math.prod(source.shape) // EXPORTED_BATCH,
            has_real_input=True,
        )
        return source, weight.name, size, instants

    def _timesteps(self, source: Call, *, is_linear: bool) -> int | None:
        """Return at how many timesteps a synapse runs; None if unknown."""
        value = self._values[source]
        if not isinstance(value, SymbolicValue):
            return 1 if isinstance(value, _Lost) and value.is_static else None
        layout, num_instants = value.layout, len(self._times(source))
        if not layout.has_time:
            return 1 if num_instants in (0, 1, self._builder.timesteps) else None
        summed = layout.axes[-1:] if is_linear else layout.axes[1:]
        if any(factor.axis == TIME for axis in summed for factor in axis):
            return 1
        return next(f.size for axis in layout.axes for f in axis if f.axis == TIME)

    def _times(self, call: Call) -> frozenset[int]:
        """Return the timesteps that a tensor without time was selected from."""
        value = self._values.get(call)
        if not isinstance(value, SymbolicValue) or value.layout.has_time:
            return frozenset()
        return frozenset[int]().union(*(self._instants_of(s) for s in self._sources(call)))

    # --- nodes

    def _add_real(self, call: Call, value: Value, sources: Sequence[str]) -> str:
        """Add real numbers that a call computes from other nodes; return their path."""
        return self._context.add(f"{self._context.prefix(call)}real", RealNumbers(value), *sources)

    def _instants_of(self, path: str) -> frozenset[int]:
        """Return the timesteps that a node's values were selected from, by default its inputs'."""
        for node in self._builder.nodes[self._num_followed :]:
            inputs = (self._instants[name] for name in node.inputs)
            self._instants.setdefault(node.path, frozenset[int]().union(*inputs))
        self._num_followed = len(self._builder.nodes)
        return self._instants[path]

    def _sources(self, value: Any) -> tuple[str, ...]:
        """Return the paths of the nodes whose outputs make up a tensor."""
        known = self._values[value] if isinstance(value, Call) else value
        if isinstance(known, _Lost):
            return known.sources
        if isinstance(known, _Results):
            return tuple(s for signal in _signals(known.call) for s in self._sources(signal))
        if isinstance(known, tuple):
            parts = cast(tuple[Any, ...], known)
            return tuple(s for part in parts for s in self._sources(part))
        return tuple(t.source for t in known.terms) if isinstance(known, SymbolicValue) else ()


def _signals(call: Call) -> list[Call]:
    """Return the calls that a call reads, including those in lists."""

    def flat(value: Any) -> Iterable[Call]:
        if isinstance(value, Call):
            yield value
        elif isinstance(value, list | tuple):
            for item in cast(Sequence[Any], value):
                yield from flat(item)

    return [signal for value in call.arguments.values() for signal in flat(value)]


def _has_levels(value: Any) -> bool:
    """Return whether at least a part of a value is made of levels."""
    parts: Iterable[Any] = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
    return any(
        term.max_size is not None
        for part in parts
        if isinstance(part, SymbolicValue)
        for term in part.terms
    )


def _may_have_time(value: Any) -> bool:
    if isinstance(value, SymbolicValue):
        return value.layout.has_time
    return not (isinstance(value, _Lost) and value.is_static)


def _is_time(axis: Axis) -> bool:
    return [factor.axis for factor in axis] == [TIME]


def _on_own_node(leading: Sequence[Axis], shape: Sequence[int]) -> Layout | None:
    """Return a layout whose axes are time, batch, or an axis of a separate node.

    None if an axis is both.

    Args:
        leading: the factors of every axis.
        shape: the length of every axis.
    """
    axes: list[Axis] = []
    node: list[int] = []
    for axis, size in zip(leading, shape, strict=True):
        outer = tuple(factor for factor in axis if factor.axis < 0)
        if not outer:
            axes.append((Factor(len(node), size),) if size > 1 else ())
            node.append(size)
        elif len(outer) == len(axis):
            axes.append(outer)
        else:
            return None
    return Layout(tuple(axes), tuple(node) or (1,))


def _convolution_macs(call: Call, source: Call, weight: tuple[int, ...]) -> tuple[int, int]:
    """Return the MACs of a convolution for the whole batch, without and with padding."""
    given, kernel = call.arguments, weight[2:]
    is_transposed = "transpose" in call.operator or bool(given.get("transposed"))
    axes = len(kernel)
    wide, narrow = source.shape[-axes:], call.shape[-axes:]
    if is_transposed:  # inputs and outputs swap their roles
        wide, narrow = narrow, wide
    stride, dilation = (per_axis(given[name], kernel) for name in ("stride", "dilation"))
    padding = given["padding"]
    if padding == "same":
        padding = [d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    elif padding == "valid":
        padding = 0
    taps = num_valid_taps(
        wide, narrow, kernel, stride=stride, padding=per_axis(padding, kernel), dilation=dilation
    )
    rows = (source if is_transposed else call).shape
    per_place = math.prod(rows[:-axes]) * weight[1]
    return per_place * taps, per_place * math.prod(narrow) * math.prod(kernel)
