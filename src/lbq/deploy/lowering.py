"""Lower the operators of a captured network to nodes, one handler per operator."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lbq.deploy.capture import EXPORTED_BATCH, Call, Captured, Constant
from lbq.deploy.graph import INPUT, LoweredNetwork
from lbq.deploy.graph_builder import (
    GraphBuilder,
    PendingSynapse,
    ScaledInput,
    SymbolicValue,
    batch_norm_affine,
    fold_batch_norm,
    unit_scale,
)
from lbq.deploy.layout import BATCH, CHANNELS, TIME, Axis, Factor, Layout, LayoutError
from lbq.deploy.neuron_thresholds import as_level_neuron
from lbq.deploy.operators import Merge, Readout, Repeat, Shortcut
from lbq.deploy.pool_args import PoolArgs, global_pool, read_pool
from lbq.errors import LoweringError
from lbq.neurons.neuron import Neuron

_Value = SymbolicValue | PendingSynapse


class Lowering:
    """Lowers a captured network.

    Args:
        captured: its operators.
        example: one sample.
        has_time: whether the example is a sequence of frames.
        dtype: of the tensors of the lowered network.
    """

    def __init__(
        self, captured: Captured, example: Tensor, has_time: bool, dtype: torch.dtype
    ) -> None:
        self._dtype, self._example = dtype, example
        shape = tuple(example.shape[2 if has_time else 1 :])
        timesteps = len(example) if has_time else None
        self.network = LoweredNetwork(
            timesteps=timesteps or 0, input_shape=shape, takes_frames=has_time
        )
        self._builder = GraphBuilder(self.network, dtype)
        self._values: dict[Call, _Value] = {}
        self.neurons: dict[str, Neuron] = {}
        """The trained neuron of each neuron of the lowered network, by path."""
        self._input = SymbolicValue(
            terms=(
                ScaledInput(
                    source=INPUT,
                    scale=unit_scale(),
                    max_size=None,
                    channels=shape[0],
                    space=shape[1:],
                ),
            ),
            layout=Layout.of_node(shape, batch=EXPORTED_BATCH, timesteps=timesteps),
        )
        for call in captured.calls:
            self._values[call] = self._lower(call)
        self._output(captured)
        if not self.network.timesteps:
            raise LoweringError(self._never_repeated())

    def _never_repeated(self) -> str:
        read = "[B, C, H, W]" if self._example.dim() == 4 else "[B, features]"
        return (
            f"the example, {list(self._example.shape)}, is read as static inputs {read}, and this "
            f"network never repeats them over time; repeat a current with "
            f"lbq.RepeatOverTime(timesteps), or pass frames, [T, B, C, H, W] or "
            f"[T, B, features] (tokens and one-dimensional signals over time are not lowered)"
        )

    def _lower(self, call: Call) -> _Value:
        if call.operator == "input":
            return self._input
        handler = _HANDLERS.get(call.operator)
        if handler is None:
            none = f"no node of a lowered network computes {call.operator}"
            return self._refuse(call, _ADVICE.get(call.name) or _ADVICE.get(call.operator, none))
        try:
            value = handler(self, call)
        except LayoutError as error:
            return self._refuse(call, str(error))
        if isinstance(value, PendingSynapse) and not _is_folded_further(call):
            return self._builder.materialize(value)
        return value

    def _output(self, captured: Captured) -> None:
        value = captured.outputs[0] if len(captured.outputs) == 1 else None
        if captured.returned != "tensor" or not isinstance(value, Call):
            what = "a constant" if isinstance(value, Constant) else f"a {captured.returned}"
            raise LoweringError(
                f"output in the network itself cannot be lowered: it returns {what}, and must "
                f"return one tensor that depends on its input"
            )
        signal = self._raw(value)
        last = self.network.plan[-1].path if self.network.plan else ""
        (first, *rest) = signal.terms
        is_last = not rest and first.source == last and first.is_current
        if is_last and isinstance(self.network.get_submodule(last), Readout):
            return
        over_time = "mean" if signal.is_mean else "none"
        layout = signal.layout
        if layout.leading == 1 and layout.has_time and self.network.timesteps == 1:
            over_time = "mean"  # of one timestep, which forward squeezes away
        elif layout.leading != (2 if layout.has_time else 1):
            self._refuse_output("its output is neither [B, ...] nor [T, B, ...]")
        if not all(signal.is_flat or layout.is_like_node(t.space) for t in signal.terms):
            self._refuse_output("its output is permuted or reshaped; do that behind the network")
        currents = self._builder.as_currents(signal, "readout", flatten=True)
        self.network.add("readout", Readout(over_time), currents.source)

    def _refuse_output(self, why: str) -> None:
        raise LoweringError(f"the network itself cannot be lowered: {why}")

    # --- synapses

    def convolve(self, call: Call) -> PendingSynapse:
        """A convolution."""
        signal, given = self._signal(call, "input"), call.arguments
        if len(call.shape) != 4 or given.get("transposed"):
            self._refuse(call, "only two-dimensional convolutions are lowered")
        weight = self._constant(call, "weight")
        kernel = tuple(weight.shape[2:])
        geometry = {name: _pair(given[name]) for name in ("stride", "dilation")}
        geometry["padding"] = self._padding(call, kernel, geometry["dilation"])
        geometry["groups"] = given["groups"]
        self._check_maps(call, signal)
        layout = self._maps(signal.layout, call.shape[1], call.shape[2:])
        return PendingSynapse(
            path=self._path(call, "conv"),
            inputs=signal,
            weight=weight,
            bias=self._optional(call, "bias"),
            layout=layout,
            geometry={name: geometry[name] for name in ("stride", "padding", "dilation", "groups")},
            entering=_source(call, "input").shape[2:],
            space=call.shape[2:],
        )

    def _padding(
        self, call: Call, kernel: tuple[int, ...], dilation: tuple[int, ...]
    ) -> tuple[int, ...]:
        padding = call.arguments["padding"]
        if not isinstance(padding, str):
            return _pair(padding)
        if padding == "valid":
            return (0,) * len(kernel)
        sizes = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if any(size % 2 for size in sizes):
            self._refuse(call, "it pads one side more than the other; use an odd kernel")
        return tuple(size // 2 for size in sizes)

    def multiply(self, call: Call) -> PendingSynapse:
        """A linear layer."""
        return self._linear(call, "input", self._constant(call, "weight"))

    def multiply_matrix(self, call: Call) -> PendingSynapse:
        """A product with a constant matrix, ``x @ matrix``."""
        names = {"aten.addmm": ("mat1", "mat2"), "aten.mm": ("self", "mat2")}
        left, right = names.get(call.operator, ("self", "other"))
        matrix = call.arguments[right]
        if not isinstance(matrix, Constant) or len(matrix.shape) != 2:
            self._refuse(call, "two signals are multiplied")
        return self._linear(call, left, self._constant(call, right).t())

    def _linear(self, call: Call, name: str, weight: Tensor) -> PendingSynapse:
        signal = self._signal(call, name)
        if not signal.is_flat or signal.layout.leading is None:
            self._refuse(
                call,
                f"a linear layer reads features, [B, features] at every instant, and this one "
                f"reads {list(_source(call, name).shape)} (tokens are not lowered); flatten first, "
                f"or write a 1x1 convolution",
            )
        order = signal.layout.feature_order()
        axes = signal.layout.axes[:-1]
        bias = "self" if call.operator == "aten.addmm" else "bias"
        return PendingSynapse(
            path=self._path(call, "linear"),
            inputs=signal,
            weight=weight if order is None else weight[:, order],
            bias=self._optional(call, bias) if bias in call.arguments else None,
            layout=Layout((*axes, (Factor(CHANNELS, len(weight)),))),
        )

    def normalise(self, call: Call) -> _Value:
        """A batch norm: folded into the synapse before it, or one weight per channel."""
        given = call.arguments
        if given["running_mean"] is None or given.get("training"):
            raise LoweringError(
                f"{call.place} has no running statistics, so its output depends on the batch; "
                f"train it with track_running_stats=True"
            )
        gain, offset = batch_norm_affine(
            self._optional(call, "weight"),
            self._optional(call, "bias"),
            self._constant(call, "running_mean"),
            self._constant(call, "running_var"),
            given["eps"],
        )
        pending = self._pending(call, "input")
        source = pending or self._signal(call, "input")
        if source.layout.leading != 1 or not source.layout.is_node_axis(1, CHANNELS):
            self._refuse(call, "it normalises flattened channels; put it before the flatten")
        if pending and not any(any(window.padding) for _, window in pending.pools):
            weight, bias = fold_batch_norm(
                pending.weight, pending.bias, gain, offset / pending.num_summed
            )
            return replace(pending, weight=weight, bias=bias)
        signal = self._signal(call, "input")
        if len(signal.terms) != 1:
            self._refuse(call, "it normalises a sum")
        (term,) = signal.terms
        path = self.network.add(
            self._path(call, "norm"),
            Shortcut(
                self._builder.to_dtype(term.scale * gain),
                self._builder.to_dtype(offset),
                max_input=term.max_size,
                has_time=signal.has_time,
            ),
            term.source,
        )
        return self._builder.currents(path, signal.layout, channels=len(gain), space=term.space)

    # --- neurons and time

    def neuron(self, call: Call) -> SymbolicValue:
        """A neuron."""
        assert isinstance(call.module, Neuron)
        signal = self._signal(call, "currents")
        if not signal.layout.has_time:
            self._refuse(call, self._never_repeated())
        if not signal.layout.is_sequence:
            self._refuse(call, "a neuron takes [T, B, ...]; unflatten the time before it")
        node, step = as_level_neuron(call.module, path=call.path, dtype=self._dtype)
        is_per_channel = node.thresholds.shape[1] > 1 or node.reset_amount.numel() > 1
        if is_per_channel and not signal.layout.is_node_axis(2, CHANNELS):
            self._refuse(call, "it has a step for every flattened feature; flatten behind it")
        currents = self._builder.as_currents(signal, call.path)
        path = self.network.add(call.path, node, currents.source)
        self.neurons[path] = call.module
        term = replace(currents, source=path, scale=step, max_size=node.max_level)
        return replace(signal, terms=(term,))

    def expand(self, call: Call) -> SymbolicValue:
        """A static current repeated over time by RepeatOverTime, expand or repeat."""
        signal = self._signal(call, "self")
        before, after = _source(call, "self").shape, call.shape
        if before == after:
            return signal
        is_once = signal.layout.leading == 2
        if signal.layout.has_time:
            self._refuse(call, f"what it repeats has a time axis already. {_REPEAT}")
        if signal.layout.leading is None or after[1:] != (before[1:] if is_once else before):
            self._refuse(call, f"it makes {list(before)} into {list(after)}. {_REPEAT}")
        return self._repeat(call, signal, after[0])

    def stack(self, call: Call) -> SymbolicValue:
        """A static current repeated over time by torch.stack."""
        parts = call.arguments["tensors"]
        signal = self._same(parts)
        is_static = signal is not None and not signal.has_time and signal.layout.leading == 1
        if signal is None or not is_static or call.arguments["dim"] != 0:
            return self._refuse(call, f"different tensors are stacked. {_REPEAT}")
        return self._repeat(call, signal, len(parts))

    def _same(self, parts: Sequence[Any]) -> SymbolicValue | None:
        """Return the value of a list whose parts are all the same, else None."""
        is_same = len({id(part) for part in parts}) == 1 and isinstance(parts[0], Call)
        return self._signal_of(parts[0]) if is_same else None

    def _repeat(self, call: Call, signal: SymbolicValue, timesteps: int) -> SymbolicValue:
        if self.network.timesteps not in (0, timesteps):
            self._refuse(
                call, f"it repeats {timesteps} times in a network of {self.network.timesteps}"
            )
        self.network.timesteps = timesteps
        path = self._path(call, "repeat")
        currents = self._builder.as_currents(signal, path if call.is_layer else call.path)
        path = self.network.add(path, Repeat(timesteps), currents.source)
        assert signal.layout.leading is not None
        axes = signal.layout.axes[signal.layout.leading - 1 :]
        layout = Layout(((Factor(TIME, timesteps),), *axes))
        return SymbolicValue(terms=(replace(currents, source=path),), layout=layout)

    # --- pools and means

    def mean(self, call: Call) -> _Value:
        """A mean over space, over time (the output), or over both."""
        source = _source(call, "self")
        rank, layout = len(source.shape), self._layout_of(source)
        axes = {axis % rank for axis in call.arguments.get("dim") or range(rank)}
        over_time = {axis for axis in axes if layout.axes[axis] and layout.is_node_axis(axis, TIME)}
        space = axes - over_time
        value: _Value = self._values[source]
        if space:
            if layout.leading is None or space != set(range(layout.leading + 1, rank)):
                self._refuse(call, f"it averages over axes {tuple(sorted(axes))}")
            value = self._pool(call, source, global_pool([source.shape[n] for n in sorted(space)]))
            if not call.arguments["keepdim"]:
                value = self._viewed(value, value.layout.reshaped(source.shape[: min(space)]))
        if over_time:
            if call.arguments["keepdim"]:
                self._refuse(call, "it keeps the axis of time (keepdim)")
            signal = self._as_signal(value)
            if any(term.max_size is not None for term in signal.terms):
                self._refuse(call, "levels are averaged over time; average behind the classifier")
            value = replace(signal, layout=signal.layout.without(over_time), is_mean=True)
        return self._viewed(value, value.layout.reshaped(call.shape))

    def pool(self, call: Call) -> _Value:
        """A pool."""
        source, name = _source(call, "self"), call.operator.removeprefix("aten.")
        given = {key: value for key, value in call.arguments.items() if key != "self"}
        window = read_pool(name, (), given, size=source.shape[2:])
        if isinstance(window, str) or window.divisor_issue:
            return self._refuse(call, window if isinstance(window, str) else window.divisor_issue)
        return self._pool(call, source, window)

    def _pool(self, call: Call, source: Call, window: PoolArgs) -> _Value:
        path, size, space = self._path(call, "pool"), math.prod(window.kernel), window.output_size()
        pending = None if window.is_max else self._pending_of(source)
        if pending and pending.geometry and pending.layout.is_like_node(pending.space):
            layout = self._maps(pending.layout, len(pending.weight), space)
            pools = (*pending.pools, (path, window))
            mean = pending.scaled(torch.tensor([1 / size], dtype=torch.float64))
            return replace(mean, pools=pools, layout=layout, space=space)
        signal = self._signal_of(source)
        self._check_maps(call, signal)
        if window.is_max and len(signal.terms) != 1:
            self._refuse(call, "the maximum of a sum is no level")
        terms: list[ScaledInput] = []
        for term in signal.terms:
            if window.is_max and not bool((term.scale > 0).all()):
                self._refuse(call, "the maximum of negative multiples is the smallest level")
            made = replace(
                term, source=self._builder.add_pool(path, window, term.source, signal), space=space
            )
            if not window.is_max:
                largest = None if term.max_size is None else term.max_size * size
                made = replace(made.scaled(1 / size), max_size=largest)
            terms.append(made)
        layout = self._maps(signal.layout, signal.channels, space)
        return replace(signal, terms=tuple(terms), layout=layout)

    # --- sums, products with numbers, concatenations

    def add(self, call: Call) -> _Value:
        """A sum or difference of two values, or of a value and constants."""
        left, right = (call.arguments[name] for name in ("self", "other"))
        factors = [1, call.arguments["alpha"] * (1 if call.operator == "aten.add" else -1)]
        if call.operator == "aten.rsub":  # other - alpha * self
            factors.reverse()
        if not (isinstance(left, Call) and isinstance(right, Call)):
            return self._shift(call, *(factors if isinstance(left, Call) else factors[::-1]))
        if left.shape != right.shape:
            self._refuse(call, f"shapes {left.shape} and {right.shape} are added")
        if min(factors) <= 0:
            self._refuse(call, "only positive multiples are added")
        are_means = all(self._is_mean(side) for side in (left, right))
        first, second = (
            self._raw(side) if are_means else self._signal_of(side) for side in (left, right)
        )
        if not first.layout.matches(second.layout):
            self._refuse(call, _difference(first.layout, second.layout))
        second = _scaled(second, torch.tensor(factors[1:], dtype=torch.float64))
        both = first.added(second)
        if all(term.max_size is not None for term in both.terms):
            return both  # bursts: a synapse reads each branch
        everything = replace(both, terms=(*first.terms, *second.terms))
        name = self._inner(call, "shortcut")
        currents = self._builder.all_currents(everything, call.path, name)
        sources = [term.source for term in currents]
        path = self.network.add(self._inner(call, "merge"), Merge(), *sources)
        return replace(both, terms=(replace(currents[0], source=path),))

    def _shift(self, call: Call, factor: float, constant_factor: float) -> _Value:
        """A multiple of a synapse and a constant, which becomes part of its bias."""
        source, constant = _split(call)
        value = self._values[source]
        numbers = constant_factor * self._per_channel(call, constant, value.layout)
        if factor == 1 and not bool(numbers.any()):
            return value
        pending = self._pending_of(source)
        if not pending or any(any(window.padding) for _, window in pending.pools):
            return self._refuse(
                call, "constants are added right behind a convolution, linear layer or batch norm"
            )
        scaled = pending.scaled(torch.tensor([factor], dtype=torch.float64))
        bias = numbers.expand(len(pending.weight)) / pending.num_summed
        return replace(scaled, bias=bias if scaled.bias is None else scaled.bias + bias)

    def scale(self, call: Call) -> _Value:
        """A product with, or a quotient by, constants: one, or one per channel."""
        source, constant = _split(call)
        if call.arguments.get("rounding_mode") is not None:
            self._refuse(call, "it rounds (rounding_mode)")
        if isinstance(constant, Call):
            self._refuse(call, "two signals are multiplied")
        numbers = self._per_channel(call, constant, self._values[source].layout)
        if call.operator == "aten.div":
            if source is not call.arguments["self"]:
                self._refuse(call, "a constant is divided by a signal")
            numbers = 1 / numbers
        pending = self._pending_of(source)
        if pending:
            return pending.scaled(numbers)
        if not bool((numbers > 0).all()):
            self._refuse(call, "only positive numbers multiply levels and sums")
        return _scaled(self._raw(source), numbers)

    def _per_channel(self, call: Call, constant: Any, layout: Layout) -> Tensor:
        """Return a number, or a tensor along the channels, as ``[1]`` or ``[C]``."""
        if not isinstance(constant, Constant):
            return torch.tensor([constant], dtype=torch.float64)
        numbers: Tensor = constant.compute().detach().double()
        long = [n - numbers.dim() for n, size in enumerate(numbers.shape) if size > 1]
        axis = len(call.shape) + long[0] if long else 0
        if len(long) > 1 or (long and not layout.is_node_axis(axis, CHANNELS)):
            self._refuse(call, f"{constant.name} is neither one number nor one per channel")
        return numbers.flatten()

    def concatenate(self, call: Call) -> SymbolicValue:
        """Concatenated channels, or a static current repeated over time."""
        parts: list[Call] = list(call.arguments["tensors"])
        if any(isinstance(part, Constant) for part in parts):
            self._refuse(call, "a tensor of its own is concatenated")
        signals = [self._signal_of(part) for part in parts]
        layouts = [signal.layout for signal in signals]
        axis = call.arguments["dim"] % len(call.shape)
        is_once = layouts[0].leading == 2 and not layouts[0].has_time
        if axis == 0 and is_once and self._same(parts) is not None:
            return self._repeat(call, signals[0], len(parts))
        total = call.shape[axis]
        are_flat = [signal.is_flat and math.prod(signal.terms[0].space) > 1 for signal in signals]
        if any(are_flat):
            self._refuse(call, "flattened channels are concatenated; flatten behind it")
        is_channel = all(layout.is_node_axis(axis, CHANNELS) for layout in layouts)
        widened = [layout.with_channels(total) for layout in layouts]
        is_alike = all(layout.matches(widened[0]) for layout in widened)
        if not is_channel or not is_alike or layouts[0].leading is None or is_once:
            self._refuse(call, "only channels are concatenated, of tensors with the same axes")
        terms: list[ScaledInput] = []
        first = 0
        for part, signal in zip(parts, signals, strict=True):
            terms += [replace(t, first_channel=t.first_channel + first) for t in signal.terms]
            first += part.shape[axis]
        return replace(signals[0], terms=tuple(terms), layout=widened[0])

    # --- layout

    def view(self, call: Call) -> _Value:
        """A reshape of any kind, flatten and unsqueeze included."""
        value = self._values[_source(call, "self")]
        layout = value.layout.reshaped(call.shape)
        merged = next((a for a in layout.axes if any(f.axis == BATCH for f in a)), ())
        if not layout.has_time and any(f.axis >= 0 and f.size > 1 for f in merged):
            self._refuse(call, f"what it flattens has no time. {self._never_repeated()}")
        return self._viewed(value, layout)

    def permute(self, call: Call) -> _Value:
        """A permutation of axes."""
        value = self._values[_source(call, "self")]
        rank, given = len(call.shape), call.arguments
        order = list(range(rank))
        if "dims" in given:
            order = [axis % rank for axis in given["dims"]]
        elif call.operator == "aten.movedim":
            numbered = torch.empty(
                [*range(rank)], device="meta"
            )  # the size of an axis is its number
            order = list(numbered.movedim(given["source"], given["destination"]).shape)
        elif rank > 1:
            own = {"aten.mT": (-2, -1), "aten.t": (0, 1)}
            first, second = own.get(call.operator) or [*given.values()][1:]
            order[first], order[second] = order[second], order[first]
        return self._viewed(value, value.layout.permuted(tuple(order)))

    def _viewed(self, value: _Value, layout: Layout) -> _Value:
        """Return the same values in another layout."""
        if not isinstance(value, PendingSynapse):
            return replace(value, layout=layout)
        is_flattened = len(layout.content) == 1 and len(value.layout.content) > 1
        linear = self._as_linear(value, layout) if is_flattened else None
        return linear or replace(value, layout=layout)

    def _as_linear(self, pending: PendingSynapse, layout: Layout) -> PendingSynapse | None:
        """Return the linear layer equivalent to a convolution followed by a flatten, else None.

        Its window covers the whole input; or it is a 1x1 convolution followed by a global average,
        and the levels are summed before it instead.
        """
        signal, kernel = pending.inputs, tuple(pending.weight.shape[2:])
        plain = {"padding": (0, 0), "dilation": (1, 1), "groups": 1}
        if any(pending.geometry.get(name) != value for name, value in plain.items()):
            return None
        channels = (Factor(CHANNELS, len(pending.weight)),)
        changed: dict[str, Any] = {
            "weight": pending.weight.flatten(1),
            "layout": Layout((*layout.axes[:-1], channels)),
            "geometry": {},
            "space": (),
        }
        if not pending.pools and pending.entering == kernel:
            return replace(pending, inputs=_flat(signal), **changed)
        are_levels = all(term.max_size is not None for term in signal.terms)
        if len(pending.pools) != 1 or kernel != (1, 1) or not are_levels:
            return None
        ((path, window),) = pending.pools
        if pending.geometry["stride"] != (1, 1) or window.kernel != pending.entering:
            return None
        size = math.prod(window.kernel)
        terms: list[ScaledInput] = []
        for term in signal.terms:
            assert term.max_size is not None
            source = self._builder.add_pool(path, window, term.source, signal)
            largest = term.max_size * size
            terms.append(replace(term, source=source, max_size=largest, space=(1, 1)))
        pooled = self._maps(signal.layout, signal.channels, (1, 1))
        flat = _flat(replace(signal, terms=tuple(terms), layout=pooled))
        bias = None if pending.bias is None else pending.bias * size
        return replace(pending, inputs=flat, bias=bias, pools=(), **changed)

    def pass_on(self, call: Call) -> _Value:
        """The identity in eval mode."""
        return self._values[_source(call, "self" if "self" in call.arguments else "input")]

    def drop(self, call: Call) -> _Value:
        """A dropout, which drops in train mode only unless forward says otherwise."""
        if call.arguments["train"] and call.arguments["p"]:
            self._refuse(call, "it drops in eval mode too; pass training=self.training")
        return self.pass_on(call)

    def take(self, call: Call) -> _Value:
        """The first result of a batch norm."""
        source = call.arguments["0"]
        if _HANDLERS.get(source.operator) is not Lowering.normalise or call.arguments["1"] != 0:
            self._refuse(call, "it takes a part of a tensor")
        return self._values[source]

    # --- values

    def _signal(self, call: Call, name: str) -> SymbolicValue:
        return self._signal_of(_source(call, name, self._refuse))

    def _signal_of(self, call: Call) -> SymbolicValue:
        """Return the value of a call; a pending mean over time is computed here."""
        signal = self._raw(call)
        if not signal.is_mean:
            return signal
        currents = self._builder.as_currents(signal, call.path)
        path = self.network.add("readout", Readout("mean"), currents.source)
        mean = replace(signal, terms=(replace(currents, source=path),), is_mean=False)
        self._values[call] = mean
        return mean

    def _raw(self, call: Call) -> SymbolicValue:
        """Return the value of a call; a mean over time may still be pending."""
        return self._as_signal(self._values[call])

    def _as_signal(self, value: _Value) -> SymbolicValue:
        return self._builder.materialize(value) if isinstance(value, PendingSynapse) else value

    def _is_mean(self, call: Call) -> bool:
        value = self._values[call]
        return isinstance(value, SymbolicValue) and value.is_mean

    def _layout_of(self, call: Call) -> Layout:
        return self._values[call].layout

    def _pending(self, call: Call, name: str) -> PendingSynapse | None:
        return self._pending_of(_source(call, name, self._refuse))

    def _pending_of(self, call: Call) -> PendingSynapse | None:
        """Return the pending synapse of a call that has one reader, else None."""
        value = self._values[call]
        return value if isinstance(value, PendingSynapse) and len(call.readers) == 1 else None

    def _constant(self, call: Call, name: str) -> Tensor:
        """Return an argument that does not depend on the input, in float64."""
        value = call.arguments[name]
        if not isinstance(value, Constant):
            self._refuse(call, f"its {name} depends on the input; two signals are multiplied")
        return value.compute().detach().double()

    def _optional(self, call: Call, name: str) -> Tensor | None:
        return None if call.arguments[name] is None else self._constant(call, name)

    def _check_maps(self, call: Call, signal: SymbolicValue) -> None:
        space = signal.terms[0].space
        is_merged = signal.layout.leading == 1 or call.operator == "aten.mean"
        if not is_merged or not space or not signal.layout.is_like_node(space):
            self._refuse(
                call,
                "it reads permuted or reshaped axes; [T * B, C, H, W] is expected, as OverTime "
                "makes it",
            )

    def _maps(self, layout: Layout, channels: int, space: Sequence[int]) -> Layout:
        """Return the layout of maps with the T and B of another layout."""
        own: list[Axis] = [(Factor(axis, n),) for axis, n in enumerate((channels, *space))]
        return Layout((*layout.axes[: layout.leading], *own))

    def _path(self, call: Call, name: str) -> str:
        """Return the path of a node: the layer's, or one inside the block that calls it."""
        return call.path if call.is_layer else self._inner(call, name)

    def _inner(self, call: Call, name: str) -> str:
        return f"{call.path}_{name}" if call.is_layer else f"{call.path}.{name}".lstrip(".")

    def _refuse(self, call: Call, why: str) -> Any:
        line = f" ({call.line})" if call.line else ""
        raise LoweringError(f"{call.name} in {call.place} cannot be lowered: {why}{line}")


def _is_folded_further(call: Call) -> bool:
    """Whether the only reader may fold something into a pending synapse, or is a reshape."""
    if len(call.readers) != 1:
        return False
    (reader,) = call.readers
    num_signals = sum(isinstance(value, Call) for value in reader.arguments.values())
    return num_signals == 1 and _HANDLERS.get(reader.operator) in _FOLDING


def _split(call: Call) -> tuple[Call, Any]:
    """Return the signal of a sum or product, and what it is added to or multiplied by."""
    left, right = (call.arguments[name] for name in ("self", "other"))
    return (left, right) if isinstance(left, Call) else (right, left)


def _source(call: Call, name: str, refuse: Callable[[Call, str], Any] | None = None) -> Call:
    """Return the call that computes an argument."""
    value = call.arguments[name]
    if not isinstance(value, Call):
        assert refuse is not None
        refuse(call, f"its {name} does not depend on the network's input")
    return value


def _flat(signal: SymbolicValue) -> SymbolicValue:
    """Return maps as features."""
    layout = signal.layout
    assert layout.leading is not None
    content = tuple(factor for axis in layout.axes[layout.leading :] for factor in axis)
    return replace(signal, layout=Layout((*layout.axes[: layout.leading], content)))


def _scaled(signal: SymbolicValue, numbers: Tensor) -> SymbolicValue:
    def of_term(term: ScaledInput) -> ScaledInput:
        if numbers.numel() == 1:
            return term.scaled(float(numbers))
        part = numbers.narrow(0, term.first_channel, term.channels)
        return replace(term, scale=term.scale * part)

    return replace(signal, terms=tuple(map(of_term, signal.terms)))


def _pair(value: int | Sequence[int]) -> tuple[int, ...]:
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * 2 if len(given) == 1 else given


def _difference(left: Layout, right: Layout) -> str:
    if left.has_time != right.has_time:
        return f"a tensor with time and one without are added. {_REPEAT}"
    if left.content != right.content and left.shape == right.shape:
        return "one side was flattened from channels and the other was not"
    return "tensors with different axes are added"


_REPEAT = "Repeat a static current over time with lbq.RepeatOverTime(timesteps)"
_Handler = Callable[[Lowering, Call], _Value]
_L = Lowering


def _aten(handler: _Handler, *names: str) -> dict[str, _Handler]:
    return {f"aten.{name}": handler for name in names}


_HANDLERS: dict[str, _Handler] = {
    **_aten(_L.convolve, "conv2d", "convolution"),
    **_aten(_L.multiply, "linear"),
    **_aten(_L.multiply_matrix, "addmm", "mm", "matmul"),
    **_aten(_L.normalise, "batch_norm", "_native_batch_norm_legit_no_training"),
    **_aten(_L.pool, "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"),
    **_aten(_L.mean, "mean"),
    **_aten(_L.expand, "expand", "repeat", "expand_as"),
    **_aten(_L.stack, "stack"),
    **_aten(_L.add, "add", "sub", "rsub"),
    **_aten(_L.scale, "mul", "div"),
    **_aten(_L.concatenate, "cat"),
    **_aten(_L.view, "view", "reshape", "flatten", "unflatten", "squeeze"),
    **_aten(_L.view, "unsqueeze", "view_as", "reshape_as", "ravel"),
    **_aten(_L.permute, "permute", "transpose", "movedim", "t", "mT"),
    **_aten(_L.pass_on, "clone", "contiguous", "detach", "detach_", "alias", "lift_fresh_copy"),
    **_aten(_L.pass_on, "to", "_to_copy", "type_as"),
    **_aten(_L.drop, "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
    "lbq.neuron": _L.neuron,
    "getitem": _L.take,
}
_FOLDING = (
    *(_L.view, _L.permute, _L.pass_on, _L.drop, _L.take),
    *(_L.normalise, _L.pool, _L.mean, _L.add, _L.scale),
)
"""Handlers that take a pending synapse as it is."""


def _advice(text: str, *names: str) -> dict[str, str]:
    return {f"aten.{name}": text for name in names}


_ADVICE: dict[str, str] = {
    **_advice(
        "its statistics depend on the values, so it cannot be folded into weights; use a batch "
        "norm, such as nn.BatchNorm2d",
        *("layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "instance_norm"),
        *("rms_norm", "local_response_norm"),
    ),
    **_advice(
        "integers have no exponential; use products of levels without a softmax",
        *("softmax", "_softmax", "log_softmax", "scaled_dot_product_attention"),
        *("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
    ),
    "MultiheadAttention": "it contains a softmax; use products of levels without one",
    **_advice(
        "real-valued activations have no levels; use a neuron, such as lbq.BurstLIF, in its place",
        *("relu", "relu6", "leaky_relu", "prelu", "elu", "celu", "selu", "gelu", "silu", "mish"),
        *("sigmoid", "hardsigmoid", "hardswish", "hardtanh", "tanh", "softplus", "clamp"),
        *("log_sigmoid", "glu", "softsign", "tanhshrink", "rrelu", "threshold"),
    ),
    **_advice(
        "its state is real-valued; use synapses and neurons, whose membranes are the state",
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"),
    ),
    **_advice(
        "only zeros are padded, by the convolution or the pool itself; write padding=1 or so there",
        *("pad", "constant_pad_nd", "reflection_pad2d", "replication_pad2d"),
    ),
    **_advice(
        "it takes a part of a tensor; apply layers to all timesteps at once with lbq.OverTime, and "
        "average over time behind the classifier",
        *("select", "slice", "unbind", "index", "split", "split_with_sizes", "chunk", "narrow"),
    ),
    **_advice(
        "use a mean over time or an average pool", "sum", "amax", "max", "adaptive_max_pool2d"
    ),
    **_advice(
        "a lowered network may not depend on single values of a tensor",
        *("item", "_local_scalar_dense", "where", "nonzero", "masked_select"),
    ),
    **_advice("only positive multiples are added", "neg"),
    **_advice(
        "random numbers differ from call to call", "rand", "randn", "rand_like", "randn_like"
    ),
}
"""What to use instead of operators, and of layers by their class, that have no exact integers."""
