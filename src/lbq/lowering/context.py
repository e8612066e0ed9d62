"""``Context``: the values of a network while it is lowered, and the nodes that compute them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from lbq.errors import LoweringError
from lbq.functional.planes import absorb_step
from lbq.graph.capture import Call, Constant
from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.layout import Arrangement, Axis, Layout
from lbq.graph.operators import (
    Concat,
    Matmul,
    Merge,
    Operator,
    Pool,
    Readout,
    Rearrange,
    Repeat,
    Shortcut,
    Synapse,
)
from lbq.graph.operators.operator_base import MAX_RANK
from lbq.lowering.pool_args import PoolArgs
from lbq.lowering.values import (
    PendingProduct,
    PendingSynapse,
    ScaledInput,
    Symbolic,
    SymbolicValue,
    along_channels,
    numbers,
)
from lbq.neurons.neuron import Neuron

Handler = Callable[["Context", Call], Any]
"""Returns the symbolic value of a call; a tuple of them for an operator with several results."""
REPEAT = "repeat a static current over time with lbq.RepeatOverTime(timesteps)"


@dataclass(frozen=True, kw_only=True, eq=False)
class LoweredNeuron:
    """The trained neuron that a neuron of a lowered network replaces."""

    trained: Neuron
    layout: Layout
    """Layout of the trained neuron's currents on the node that the lowered neuron reads."""
    scale: Tensor
    """Ratio of the trained neuron's currents to the lowered neuron's, ``[1]`` or ``[C]``."""

    def as_lowered(self, currents: Tensor) -> Tensor:
        """Return currents of the trained neuron as the lowered one receives them."""
        moved = self.layout.to_node(currents)
        return moved / along_channels(self.scale, moved[0, 0])


class Context:
    """The values of calls, and the methods with which handlers compute new values.

    Args:
        builder: receives the nodes.
        dtype: dtype of the nodes' tensors.
    """

    def __init__(self, builder: GraphBuilder, dtype: torch.dtype) -> None:
        self.builder, self.dtype = builder, dtype
        self.values: dict[Call, Any] = {}
        self.neurons: dict[str, LoweredNeuron] = {}
        """The neurons by their path in the lowered network."""
        self.inputs = {INPUT}
        """Paths of the input, and of nodes that only move its values."""
        self._built: dict[int, tuple[Symbolic, SymbolicValue]] = {}
        self._repeated: dict[str, str] = {}

    # --- arguments

    def source(self, call: Call, name: str) -> Call:
        """Return the call that computes an argument."""
        value = call.arguments[name]
        if not isinstance(value, Call):
            self.refuse(call, f"its {name} does not depend on the network's input")
        return value

    def symbolic(self, source: Call) -> Symbolic:
        """Return the value of a call, which may be pending."""
        value = self.values[source]
        if isinstance(value, tuple):
            self.refuse(source, "it has several results, and they are read as one")
        return value

    def signal(self, call: Call, name: str) -> SymbolicValue:
        """Return the value of an argument, with pending means and repetitions computed."""
        return self.signal_of(self.source(call, name))

    def signal_of(self, source: Call, *, repeat: bool = True) -> SymbolicValue:
        """Return the value of a call, with a pending mean over time computed.

        Args:
            source: the call.
            repeat: whether to compute pending repetitions over time too.
        """
        value = self.materialize(self.symbolic(source))
        if repeat:
            value = self.repeated(value)
        if value.is_mean:
            currents = self.currents(value, f"{source.path}_".lstrip("_"))
            path = self.add("readout", Readout("mean"), currents.source)
            term = replace(currents, source=path)
            value = replace(value, terms=(term,), is_mean=False)
            self.values[source] = value
        return value

    def repeated(self, value: SymbolicValue) -> SymbolicValue:
        """Return the value with its pending repetition over time computed."""
        if not value.repeat:
            return value
        terms: list[ScaledInput] = []
        for term in value.terms:
            if term.source not in self._repeated:
                node = Repeat(self.builder.timesteps)
                self._repeated[term.source] = self.add(value.repeat, node, term.source)
            terms.append(replace(term, source=self._repeated[term.source]))
        return replace(value, terms=tuple(terms), repeat="")

    def pending(self, source: Call) -> PendingSynapse | None:
        """Return the pending synapse of a call that has one reader, else None."""
        value = self.values[source]
        return value if isinstance(value, PendingSynapse) and len(source.readers) == 1 else None

    def constant(self, call: Call, name: str) -> Tensor:
        """Return an argument that does not depend on the input, in float64."""
        value = call.arguments[name]
        if not isinstance(value, Constant):
            self.refuse(call, f"its {name} depends on the network's input")
        return value.compute().detach().double()

    def optional(self, call: Call, name: str) -> Tensor | None:
        """Return a constant argument, or None if the call has none."""
        return None if call.arguments.get(name) is None else self.constant(call, name)

    # --- paths and errors

    def path(self, call: Call, name: str) -> str:
        """Return the path of a node: the layer's, or a new one inside the calling block."""
        return call.path if call.is_layer else self.prefix(call) + name

    def prefix(self, call: Call) -> str:
        """Return the beginning of the paths of a call's further nodes."""
        return f"{call.path}_" if call.is_layer else f"{call.path}.".lstrip(".")

    def refuse(self, call: Call, why: str) -> NoReturn:
        """Raise LoweringError with the place of a call."""
        line = f" ({call.line})" if call.line else ""
        raise LoweringError(f"{call.name} in {call.place} cannot be lowered: {why}{line}")

    # --- nodes

    def add(self, path: str, node: Operator, *sources: str) -> str:
        """Add a node; return its path."""
        return self.builder.add(path, node, *sources)

    def to_dtype(self, values: Tensor) -> Tensor:
        """Return a copy in the dtype of the network."""
        return values.to(self.dtype).clone()

    def materialize(self, value: Symbolic) -> SymbolicValue:
        """Add the nodes of a pending value; return their output."""
        if isinstance(value, SymbolicValue):
            return value
        if id(value) not in self._built:
            is_synapse = isinstance(value, PendingSynapse)
            made = self._synapse(value) if is_synapse else self._product(value)
            self._built[id(value)] = value, made  # keeps the value, so that its id is not reused
        return self._built[id(value)][1]

    def _synapse(self, pending: PendingSynapse) -> SymbolicValue:
        """Add one synapse per input term, their sum, and the pools."""
        groups, signal = pending.geometry.get("groups", 1), pending.inputs
        if groups > 1:
            signal = self.whole(signal, f"{pending.path}_")
        paths: list[str] = []
        for term in signal.terms:
            bias = None if pending.bias is None or paths else self.to_dtype(pending.bias)
            weight = _absorb(pending.weight, term, channels=signal.layout.node[0], groups=groups)
            node = Synapse(
                self.to_dtype(weight),
                bias,
                max_input=term.max_size,
                has_time=signal.has_time,
                **pending.geometry,
            )
            paths.append(self.add(pending.path, node, term.source))
        path = paths[0]
        if len(paths) > 1:
            path = self.add(f"{pending.path}_merge", Merge(), *paths)
        for pool, window in pending.pools:
            path = self.add_pool(pool, window, path, signal)
        return replace(self.given(path, pending.layout), repeat=signal.repeat)

    def _product(self, pending: PendingProduct) -> SymbolicValue:
        """Add a product for each pair of terms."""
        terms: list[ScaledInput] = []
        for left in pending.left.terms:
            for right in pending.right.terms:
                assert left.max_size is not None
                assert right.max_size is not None
                path = self.add(pending.path, Matmul(), left.source, right.source)
                largest = left.max_size * right.max_size * left.shape[2]
                scale = left.scale * right.scale * pending.scale
                shape = (*left.shape[:2], right.shape[2])
                terms.append(ScaledInput(source=path, shape=shape, scale=scale, max_size=largest))
        return SymbolicValue(terms=tuple(terms), layout=pending.layout)

    def add_pool(self, path: str, window: PoolArgs, source: str, signal: SymbolicValue) -> str:
        """Add a pool of one term; return its path."""
        node = Pool(
            "max" if window.is_max else "sum",
            kernel=window.kernel,
            stride=window.stride,
            padding=window.padding,
            has_time=signal.has_time,
        )
        return self.add(path, node, source)

    def given(self, path: str, layout: Layout) -> SymbolicValue:
        """Return the currents of a node as a value."""
        term = ScaledInput(source=path, shape=layout.node, scale=numbers(1.0), max_size=None)
        return SymbolicValue(terms=(term,), layout=layout)

    def moved(
        self,
        value: SymbolicValue,
        path: str,
        make: Callable[[], Operator],
        layout: Layout,
        scale: Callable[[Tensor], Tensor] = lambda scale: scale,
    ) -> SymbolicValue:
        """Return a value whose terms are each moved by a node.

        Args:
            value: the value; channels of a concatenation are joined first.
            path: path of the nodes.
            make: builds one node.
            layout: layout of the result.
            scale: moves a scale per channel in the same way.
        """
        value = self.whole(value, f"{path}_")
        terms: list[ScaledInput] = []
        for term in value.terms:
            new = term.scale if term.scale.numel() == 1 else scale(term.scale)
            source = self.add(path, make(), term.source)
            if term.source in self.inputs:
                self.inputs.add(source)
            terms.append(replace(term, source=source, shape=layout.node, scale=new))
        return replace(value, terms=tuple(terms), layout=layout)

    def arranged(self, call: Call, value: SymbolicValue, groups: Sequence[Axis]) -> SymbolicValue:
        """Return the value on nodes whose axes are groups of factors, moved where they differ."""
        if len(groups) > MAX_RANK:
            self.refuse(call, f"it needs a node of {len(groups)} axes; the limit is {MAX_RANK}")
        return self.rearranged(call, value, value.layout.arranged(groups))

    def rearranged(self, call: Call, value: SymbolicValue, new: Arrangement) -> SymbolicValue:
        """Return the value on nodes in another order."""
        if new.is_same:
            return replace(value, layout=new.layout)
        node = value.layout.node

        def per_channel(scale: Tensor) -> Tensor:
            everywhere = scale.reshape(-1, *[1] * (len(node) - 1)).expand(node)
            rows = new.moved(everywhere).reshape(new.layout.node[0], -1)
            if not bool((rows == rows[:, :1]).all()):
                self.refuse(
                    call,
                    "the neurons before it have a step per channel, and it mixes these channels; "
                    "use one step for that layer",
                )
            return rows[:, 0]

        def make() -> Operator:
            sizes, order = new.sizes, new.order
            return Rearrange(
                sizes=sizes, order=order, shape=new.layout.node, has_time=value.has_time
            )

        return self.moved(value, self.prefix(call) + "rearrange", make, new.layout, per_channel)

    def channels_first(
        self, call: Call, value: SymbolicValue, axis: int, *, merge: bool = False
    ) -> SymbolicValue:
        """Return the value on nodes whose channels are an axis of the tensor.

        Args:
            call: the call that needs the value.
            value: the value; it is not moved if its channels are that axis already.
            axis: axis of the tensor.
            merge: whether to merge all other axes into one spatial axis.
        """
        layout = value.layout
        if any(factor.axis < 0 for factor in layout.axes[axis]):
            self.refuse(call, "it computes along the batch or along time")
        if layout.is_whole(axis) and not merge:
            return value
        others = [n for n in range(len(layout.axes)) if n != axis and layout.content(n)]
        groups = [layout.content(n) for n in others]
        if merge or len(groups) >= MAX_RANK:
            groups = [layout.content(*others)]
        return self.arranged(call, value, [layout.content(axis), *groups])

    def as_axes(self, call: Call, value: SymbolicValue, first: int) -> SymbolicValue:
        """Return the value on nodes whose axes are those of the tensor from ``first`` on."""
        layout = value.layout
        if layout.content(*range(first)):
            hint = "" if layout.has_time else "; for an example with time first, pass batch_axis=1"
            self.refuse(
                call,
                f"its input, {list(layout.shape)}, has axes of the samples merged with the "
                f"batch{hint}",
            )
        axes = range(first, len(layout.axes))
        if any(factor.axis < 0 for axis in axes for factor in layout.axes[axis]):
            self.refuse(call, "it computes along the batch or along time")
        return self.arranged(call, value, [layout.content(axis) for axis in axes])

    def whole(self, value: SymbolicValue, prefix: str) -> SymbolicValue:
        """Return the value with concatenated terms joined, so that each has all channels."""
        if not value.is_concatenated:
            return value
        if not value.are_levels or len(_ranges(value, prefix)) != len(value.terms):
            return replace(value, terms=(self.currents(value, prefix),))
        parts = sorted(value.terms, key=lambda term: term.first_channel)
        node = Concat(axis=0, has_time=value.has_time)
        path = self.add(f"{prefix}concat", node, *(part.source for part in parts))
        scale = torch.cat([part.scale.expand(part.shape[0]) for part in parts])
        if bool((scale == scale[0]).all()):
            scale = scale[:1]
        largest = max(part.max_size or 0 for part in parts)
        term = ScaledInput(source=path, shape=value.layout.node, scale=scale, max_size=largest)
        return replace(value, terms=(term,))

    def currents(self, value: SymbolicValue, prefix: str) -> ScaledInput:
        """Return the value as the currents of one node: scaled, added and concatenated."""
        parts: list[ScaledInput] = []
        for terms in _ranges(value, prefix).values():
            made = [self._current(term, value, f"{prefix}shortcut") for term in terms]
            part = made[0]
            if len(made) > 1:
                path = self.add(f"{prefix}merge", Merge(), *(term.source for term in made))
                part = replace(part, source=path)
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        node = Concat(axis=0, has_time=value.has_time)
        path = self.add(f"{prefix}concat", node, *(part.source for part in parts))
        return replace(parts[0], source=path, shape=value.layout.node, first_channel=0)

    def _current(self, term: ScaledInput, value: SymbolicValue, name: str) -> ScaledInput:
        if term.is_current:
            return term
        node = Shortcut(self.to_dtype(term.scale), max_input=term.max_size, has_time=value.has_time)
        return replace(
            term, source=self.add(name, node, term.source), scale=numbers(1.0), max_size=None
        )


def _ranges(value: SymbolicValue, prefix: str) -> dict[int, list[ScaledInput]]:
    """Return terms by their first channel, in order; raise if two overlap in part."""
    what = prefix.rstrip("._") or "the network itself"
    if not value.layout.node:
        raise LoweringError(
            f"{what} cannot be lowered: its values have no channels, only time and batch; keep an "
            f"axis of length 1, and squeeze it outside of the network"
        )
    found: dict[int, list[ScaledInput]] = {}
    for term in sorted(value.terms, key=lambda term: term.first_channel):
        found.setdefault(term.first_channel, []).append(term)
    end = 0
    for first, terms in found.items():
        if first != end or len({term.shape[0] for term in terms}) > 1:
            raise LoweringError(
                f"{what} cannot be lowered: it adds two "
                f"concatenations whose parts have different numbers of channels; concatenate "
                f"parts of equal sizes, or put a synapse between"
            )
        end += terms[0].shape[0]
    return found


def _absorb(weight: Tensor, term: ScaledInput, *, channels: int, groups: int) -> Tensor:
    """Scale the weights that read a term by its scale.

    Args:
        weight: ``[out, in / groups, ...]``; a linear layer may read features of flattened channels.
        term: the input.
        channels: number of channels of all terms together.
        groups: groups of the synapse; 1 for concatenated channels.
    """
    features = weight.shape[1] * groups // channels  # per channel; 1 unless flattened
    if groups == 1:
        weight = weight.narrow(1, term.first_channel * features, term.shape[0] * features)
    scale = term.scale
    if scale.numel() > 1:
        scale = scale.repeat_interleave(features)
    if groups == 1 or scale.numel() == 1:
        return absorb_step(weight, scale)
    parts = zip(weight.chunk(groups), scale.chunk(groups), strict=True)
    return torch.cat([absorb_step(part, step) for part, step in parts])
