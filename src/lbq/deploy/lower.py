"""``lower``: fold batch norms and absorb steps, so that layers exchange integer levels."""

import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq.deploy.capture import Call, capture, overridden_methods
from lbq.deploy.check_lowering import check_agreement
from lbq.deploy.graph import INPUT, LoweredNetwork
from lbq.deploy.graph_builder import (
    Axes,
    GraphBuilder,
    PendingSynapse,
    ScaledInput,
    SymbolicValue,
    batch_norm_affine,
    fold_batch_norm,
    unit_scale,
)
from lbq.deploy.neuron_thresholds import as_level_neuron
from lbq.deploy.operators import Merge, Readout, Repeat, Shortcut
from lbq.deploy.pool_args import PoolArgs, global_pool, module_call, read_pool
from lbq.errors import LoweringError
from lbq.models import time
from lbq.models.time import FramesIn, ImagesIn, MeanOverTime, RepeatOverTime
from lbq.neurons.neuron import Neuron


def lower(model: nn.Module, example: Tensor, *, check_time: bool = False) -> LoweredNetwork:
    """Convert a trained network to an equivalent one with integer levels between its layers.

    Batch norms are folded and steps absorbed in float64; the result has the model's dtype. The same
    lowering in float64 is compared with the model: currents and levels of every neuron, and the
    outputs, for one sample of the example and a random one, with the same noise on the currents of
    both so that every neuron emits. A difference beyond rounding raises an error with the path of
    the first neuron it reaches.

    The network is lowered as in eval mode; one in train mode gives a warning.

    Args:
        model: a network of synapses, batch norms, pools, sums and neurons that torch.fx can trace.
            It is not changed.
        example: an input that determines the shapes: static inputs ``[B, C, H, W]`` or
            ``[B, features]``, or frames with time first.
        check_time: first check, with :func:`lbq.check_time`, that the model does not take the batch
            as time.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> net(torch.randn(4, 3, 16, 16)).shape
        torch.Size([4, 10])
    """
    if check_time:
        time.check_time(model, example)
    _check_mode(model)
    has_time = _has_time(example)
    example = example[:, :1] if has_time else example[:1]
    calls = capture(model, example)
    lowering = _Lowering(calls, example, has_time, _dtype_of(model))
    check_agreement(
        model,
        example,
        lambda: _Lowering(calls, example, has_time, torch.float64).paired(),
        has_time=has_time,
    )
    return lowering.network


def _check_mode(model: nn.Module) -> None:
    training = [path for path, module in model.named_modules() if module.training]
    if training:
        where = training[0] or "the network"
        warnings.warn(
            f"{where} is in train mode, and is lowered as in eval mode: batch norms use their "
            f"running statistics and nothing is dropped; call model.eval() first",
            stacklevel=3,
        )


def _has_time(example: Tensor) -> bool:
    if not 2 <= example.dim() <= 5:
        raise LoweringError(
            f"the example has shape {list(example.shape)}; pass a batch of static inputs, "
            f"[B, features] or [B, C, H, W], or of frames, [T, B, features] or [T, B, C, H, W]"
        )
    return example.dim() in (3, 5)


def _dtype_of(model: nn.Module) -> torch.dtype:
    floats = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return torch.promote_types(floats[0] if floats else torch.float32, torch.float32)


_Value = SymbolicValue | PendingSynapse | None
"""The result of a call of the trained network; None for what is no tensor (shapes)."""


class _Lowering:
    def __init__(
        self, calls: list[Call], example: Tensor, has_time: bool, dtype: torch.dtype
    ) -> None:
        self._dtype, self._example = dtype, example
        shape = tuple(example.shape[2 if has_time else 1 :])
        self.network = LoweredNetwork(
            timesteps=len(example) if has_time else 0, input_shape=shape, takes_frames=has_time
        )
        self._builder = GraphBuilder(self.network, self._dtype)
        self._values: dict[int, _Value] = {}
        self._neurons: dict[str, Neuron] = {}
        self._readers = {
            id(first): call
            for call in calls
            for first in call.args[:1]
            if isinstance(first, Call) and _FUNCTIONS.get(call.target) is not _L.read_shape
        }
        """The reader of a call, if there is only one."""
        for call in calls:
            self._values[id(call)] = self._lower(call, has_time)
        if not self.network.timesteps:
            raise LoweringError(self._never_repeated())

    def paired(self) -> tuple[LoweredNetwork, dict[str, Neuron]]:
        """Return the network, and the trained neuron of each of its neurons by path."""
        return self.network, self._neurons

    def _never_repeated(self) -> str:
        read = "[B, C, H, W]" if self._example.dim() == 4 else "[B, features]"
        return (
            f"the example, {list(self._example.shape)}, is read as static inputs {read}, and this "
            f"network never repeats them over time; repeat a current with "
            f"lbq.RepeatOverTime(timesteps), or pass frames, [T, B, C, H, W] or "
            f"[T, B, features] (tokens and one-dimensional signals over time are not lowered)"
        )

    def _lower(self, call: Call, has_time: bool) -> _Value:
        if call.kind == "input":
            return self._input(call, has_time)
        if call.kind == "output":
            return self._output(call)
        if call.kind == "attribute":
            return self._refuse(call, f"it computes with a tensor of its own, {call.target}")
        if call.module is not None:
            return self._module(call, call.module)
        handler = _FUNCTIONS.get(call.target)
        return handler(self, self._named(call)) if handler else self._refuse(call)

    def _input(self, call: Call, has_time: bool) -> _Value:
        if call.shape is None:
            return None  # an argument that was not given
        shape = self.network.input_shape
        term = ScaledInput(source=INPUT, scale=unit_scale(), max_size=None, channels=shape[0])
        return SymbolicValue(
            terms=(term,), axes="time" if has_time else "static", is_flat=len(shape) < 2
        )

    def _named(self, call: Call) -> Call:
        """Make keyword arguments positional; raise for unknown ones."""
        names = _ARGUMENTS.get(call.name)
        if names is None:
            return call
        args, rest = list(call.args), dict(call.kwargs)
        for name in names[len(args) :]:
            if name not in rest:
                break
            args.append(rest.pop(name))
        unknown = [*map(str, args[len(names) :]), *(name for name in rest if name not in names)]
        if unknown:
            self._refuse(call, f"it is called with {', '.join(unknown)}")
        return replace(call, args=tuple(args), kwargs=rest)

    def _module(self, call: Call, module: nn.Module) -> _Value:
        if isinstance(module, Neuron):
            return self._neuron(call, module)
        handler = _MODULES.get(call.target)
        if handler is None:
            base = next((kind for kind in _MODULES if isinstance(module, kind)), None)
            if base is None:
                return self._refuse(call)
            if base.__module__.startswith("torch.") or overridden_methods(module, base):
                kind = f"{call.target.__module__}.{call.target.__qualname__}"
                self._refuse(call, f"a {kind} does not compute the same as a {base.__name__}")
            handler = _MODULES[base]
        return handler(self, call)

    def convolve(self, call: Call) -> PendingSynapse:
        """A convolution."""
        layer, signal = call.module, self._signal(call)
        assert isinstance(layer, nn.Conv2d)
        if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
            self._refuse(call, "only zeros are padded, by numbers; write padding=1 or so")
        geometry = {k: getattr(layer, k) for k in ("stride", "padding", "dilation", "groups")}
        return self._pending_synapse(call, layer, signal, geometry)

    def multiply(self, call: Call) -> PendingSynapse:
        """A linear layer."""
        layer, signal = call.module, self._signal(call)
        assert isinstance(layer, nn.Linear)
        if not signal.is_flat and self._space(call.args[0]) != ():
            self._refuse(
                call,
                f"a linear layer reads features, [B, features] at every instant, and this one "
                f"reads {list(call.args[0].shape or ())} (tokens are not lowered); flatten first, "
                f"or write a 1x1 convolution",
            )
        return self._pending_synapse(call, layer, signal, {})

    def _pending_synapse(
        self,
        call: Call,
        layer: nn.Conv2d | nn.Linear,
        signal: SymbolicValue,
        geometry: dict[str, Any],
    ) -> PendingSynapse:
        bias = None if layer.bias is None else layer.bias.detach().double()
        weight = layer.weight.detach().double()
        return PendingSynapse(
            path=call.path,
            inputs=signal,
            weight=weight,
            bias=bias,
            geometry=geometry,
            entering=self._space(call.args[0]),
        )

    def normalise(self, call: Call) -> _Value:
        """A batch norm: folded into the synapse before it, or one weight per channel."""
        norm = call.module
        assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
        gain, offset = batch_norm_affine(norm, path=call.path)
        pending = self._pending_of(call.args[0])
        if pending and not any(any(window.padding) for _, window in pending.pools):
            weight, bias = fold_batch_norm(
                pending.weight, pending.bias, gain, offset / pending.num_summed
            )
            return replace(pending, weight=weight, bias=bias)
        signal = self._signal(call)
        if len(signal.terms) != 1:
            self._refuse(call, "it normalises a sum")
        (term,) = signal.terms
        if term.channels != len(gain):
            self._refuse(call, "it normalises flattened channels; put it before the flatten")
        path = self.network.add(
            call.path,
            Shortcut(
                self._builder.to_dtype(term.scale * gain),
                self._builder.to_dtype(offset),
                max_input=term.max_size,
                has_time=signal.axes != "static",
            ),
            term.source,
        )
        made = self._builder.currents(path, like=signal, channels=len(gain))
        return replace(made, terms=(replace(made.terms[0], positions=term.positions),))

    def _neuron(self, call: Call, neuron: Neuron) -> SymbolicValue:
        signal = self._signal(call)
        if signal.axes in ("static", "once"):
            self._refuse(call, self._never_repeated())
        if signal.axes != "time":
            self._refuse(call, "a neuron takes [T, B, ...]; unflatten the time before it")
        currents = self._builder.as_currents(signal, call.path)
        node, step = as_level_neuron(neuron, path=call.path, dtype=self._dtype)
        assert call.shape is not None
        if currents.positions > 1 and (
            node.thresholds.shape[1] > 1 or node.reset_amount.numel() > 1
        ):
            self._refuse(call, "it has a step for every flattened feature; flatten behind it")
        path = self.network.add(call.path, node, currents.source)
        self._neurons[path] = neuron
        term = ScaledInput(
            source=path,
            scale=step,
            max_size=node.max_level,
            channels=call.shape[2],
            positions=currents.positions,
        )
        return replace(signal, terms=(term,))

    def _output(self, call: Call) -> None:
        value = call.args[0]
        if not isinstance(value, Call):
            self._refuse(call, f"it returns a {type(value).__name__}, and must return one tensor")
        signal = self._raw(value)
        last = self.network.plan[-1].path if self.network.plan else ""
        (first, *rest) = signal.terms
        is_last = not rest and first.source == last and first.is_current
        if is_last and isinstance(self.network.get_submodule(last), Readout):
            return
        currents = self._builder.as_currents(signal, "readout", flatten=True)
        over_time = "mean" if signal.axes == "mean" else "none"
        self.network.add("readout", Readout(over_time), currents.source)

    def mean(self, call: Call) -> _Value:
        """A mean over time (the output), or over space."""
        axes = _axes(call, "dim")
        assert call.args[0].shape is not None
        rank = len(call.args[0].shape)
        keeps_axes = call.module is None and _argument(call, 2, "keepdim", False)
        has_time = self._axes_of(call.args[0]) == "time"
        if call.module is not None or ({a % rank for a in axes} == {0} and has_time):
            signal = self._signal(call)
            if any(term.max_size is not None for term in signal.terms):
                self._refuse(call, "levels are averaged over time; average behind the classifier")
            if keeps_axes:
                self._refuse(call, "it keeps the axis of time (keepdim)")
            return replace(signal, axes="mean")
        leading = 2 if has_time else 1
        if rank == leading + 3 and {a % rank for a in axes} == {rank - 2, rank - 1}:
            pooled = self._pool(call, global_pool(self._space(call.args[0])))
            if keeps_axes:
                return pooled
            linear = self._as_linear(pooled) if isinstance(pooled, PendingSynapse) else None
            return linear or self._flat(pooled, positions=1)
        return self._refuse(call, f"it averages over axes {axes}")

    def pool(self, call: Call) -> _Value:
        """A pool, as a module or a function."""
        space = self._space(call.args[0])
        name, args, kwargs = call.name, call.args[1:], call.kwargs
        if call.module is not None:
            name, kwargs = module_call(call.module)
            args = ()
        window = read_pool(name, args, kwargs, size=space)
        if isinstance(window, str) or window.divisor_issue:
            return self._refuse(call, window if isinstance(window, str) else window.divisor_issue)
        return self._pool(call, window)

    def _pool(self, call: Call, window: PoolArgs) -> _Value:
        path = call.path if call.module else f"{call.path}.pool".lstrip(".")
        size = math.prod(window.kernel)
        pending = None if window.is_max else self._pending_of(call.args[0])
        if pending and pending.geometry:
            return replace(pending.scaled(1 / size), pools=(*pending.pools, (path, window)))
        signal = self._signal(call)
        if window.is_max and len(signal.terms) != 1:
            self._refuse(call, "the maximum of a sum is no level")
        terms: list[ScaledInput] = []
        for term in signal.terms:
            if window.is_max and not bool((term.scale > 0).all()):
                self._refuse(call, "the maximum of negative multiples is the smallest level")
            source = self._builder.add_pool(path, window, term.source, signal)
            if window.is_max:
                terms.append(replace(term, source=source))
            else:
                largest = None if term.max_size is None else term.max_size * size
                terms.append(replace(term.scaled(1 / size), source=source, max_size=largest))
        return replace(signal, terms=tuple(terms))

    def repeat(self, call: Call) -> SymbolicValue:
        """A static current repeated over time by RepeatOverTime."""
        signal = self._signal(call)
        if signal.axes != "static":
            self._refuse(call, "what it repeats has a time axis already")
        assert call.timesteps is not None  # of a RepeatOverTime
        return self._repeat(call, signal, call.timesteps)

    def _repeat(self, call: Call, signal: SymbolicValue, timesteps: int) -> SymbolicValue:
        if self.network.timesteps not in (0, timesteps):
            self._refuse(
                call, f"it repeats {timesteps} times in a network of {self.network.timesteps}"
            )
        self.network.timesteps = timesteps
        currents = self._builder.as_currents(signal, call.path)
        path = call.path if call.module else f"{call.path}.repeat".lstrip(".")
        path = self.network.add(path, Repeat(timesteps), currents.source)
        return replace(signal, terms=(replace(currents, source=path),), axes="time")

    def unsqueeze(self, call: Call) -> _Value:
        """A time axis of one instant, on the way to a repetition."""
        if self._axes_of(call.args[0]) != "static" or _argument(call, 1, "dim", None) != 0:
            self._refuse(call, f"only time is added as a new axis, before all others. {_REPEAT}")
        return replace(self._signal(call), axes="once")

    def expand(self, call: Call) -> _Value:
        """A static current repeated over time by torch's expand or repeat."""
        signal = self._signal(call)
        before, after = call.args[0].shape, call.shape
        assert before is not None
        assert after is not None
        one_instant = before[1:] if signal.axes == "once" else before
        if signal.axes not in ("static", "once") or after[1:] != one_instant:
            self._refuse(call, f"it makes {list(before)} into {list(after)}. {_REPEAT}")
        return self._repeat(call, signal, after[0])

    def stack(self, call: Call) -> _Value:
        """A static current repeated over time by torch.stack."""
        parts = call.args[0]
        (axis,) = _axes(call, "dim") or (0,)
        signal = self._same(parts)
        if signal is None or signal.axes != "static" or axis != 0:
            return self._refuse(call, f"different tensors are stacked. {_REPEAT}")
        return self._repeat(call, signal, len(parts))

    def _same(self, parts: Any) -> SymbolicValue | None:
        """Return the value of a list whose parts are all the same, else None."""
        is_same = isinstance(parts, list | tuple) and len({id(part) for part in parts}) == 1
        return self._signal_of(parts[0]) if is_same and isinstance(parts[0], Call) else None

    def add(self, call: Call) -> _Value:
        """A sum of two values, or of a value and 0."""
        left, right = call.args[:2]
        if not (isinstance(left, Call) and isinstance(right, Call)):
            number = right if isinstance(left, Call) else left
            if number != 0:
                self._refuse(call, "a number is added")
            return self._values[id(left if isinstance(left, Call) else right)]
        if left.shape != right.shape:
            self._refuse(call, f"shapes {left.shape} and {right.shape} are added")
        are_means = all(self._axes_of(side) == "mean" for side in (left, right))
        signals = [
            self._raw(side) if are_means else self._signal_of(side) for side in (left, right)
        ]
        if signals[0].axes != signals[1].axes:
            self._refuse(call, f"{signals[0].axes} and {signals[1].axes} tensors are added")
        if signals[0].channels != signals[1].channels:
            self._refuse(call, "one side was flattened from channels and the other was not")
        both = signals[0].added(signals[1])
        if all(term.max_size is not None for term in both.terms):
            return both  # bursts: a synapse reads each branch
        terms = [term for signal in signals for term in signal.terms]
        currents = self._builder.all_currents(replace(both, terms=tuple(terms)), call.path)
        sources = [term.source for term in currents]
        path = self.network.add(f"{call.path}.merge".lstrip("."), Merge(), *sources)
        return replace(both, terms=(replace(currents[0], source=path),))

    def scale(self, call: Call) -> SymbolicValue:
        """A product with, or a quotient by, a positive number."""
        left, right = call.args[:2]
        number = right if isinstance(left, Call) else left
        if not isinstance(number, int | float) or number <= 0:
            self._refuse(call, "only positive numbers multiply a signal")
        if "div" in call.name:
            if not isinstance(left, Call):
                self._refuse(call, "a number is divided by a signal")
            number = 1 / number
        signal = self._raw(left if isinstance(left, Call) else right)
        return replace(signal, terms=tuple(term.scaled(number) for term in signal.terms))

    def concatenate(self, call: Call) -> SymbolicValue:
        """Concatenated channels, or a static current repeated over time."""
        parts: list[Call] = list(call.args[0])
        signals = [self._signal_of(part) for part in parts]
        (axis,) = _axes(call, "dim") or (0,)
        assert call.shape is not None
        if axis == 0 and signals[0].axes == "once" and self._same(parts) is not None:
            return self._repeat(call, signals[0], len(parts))
        is_channel = axis % len(call.shape) == (2 if signals[0].axes == "time" else 1)
        axes = {signal.axes for signal in signals}
        if not is_channel or len(axes) > 1 or "once" in axes:
            self._refuse(call, "only channels are concatenated, of tensors with the same axes")
        terms: list[ScaledInput] = []
        first = 0
        for part, signal in zip(parts, signals, strict=True):
            assert part.shape is not None
            if signal.channels != part.shape[2 if signal.axes == "time" else 1]:
                self._refuse(call, "flattened channels are concatenated; flatten behind it")
            terms += [replace(t, first_channel=t.first_channel + first) for t in signal.terms]
            first += part.shape[2 if signal.axes == "time" else 1]
        return replace(signals[0], terms=tuple(terms))

    def flatten(self, call: Call) -> _Value:
        """Time merged into the batch, or channels and space flattened to features."""
        module, before = call.module, call.args[0]
        if isinstance(module, nn.Flatten):
            start, end = module.start_dim, module.end_dim
        else:
            start, end = _argument(call, 1, "start_dim", 0), _argument(call, 2, "end_dim", -1)
        rank, axes = len(before.shape or ()), self._axes_of(before)
        start, end = start % rank, end % rank
        if (start, end) == (0, 1) and axes == "time":
            return self._moved(call, "merged")
        if (start, end) == (0, 1):
            self._refuse(call, f"what it flattens has no time. {self._never_repeated()}")
        if start == (2 if axes == "time" else 1) and end == rank - 1:
            if end == start:
                return self._values[id(before)]  # features already
            pending = self._pending_of(before)
            linear = self._as_linear(pending) if pending else None
            return linear or self._flat(self._raw(before), math.prod(self._space(before)))
        return self._refuse(call, f"it flattens axes {start}..{end} of {rank}")

    def _flat(self, value: _Value, positions: int) -> SymbolicValue:
        assert value is not None
        signal = self._builder.materialize(value) if isinstance(value, PendingSynapse) else value
        terms = tuple(replace(term, positions=positions) for term in signal.terms)
        return replace(signal, terms=terms, is_flat=True)

    def _as_linear(self, pending: PendingSynapse) -> PendingSynapse | None:
        """Return the linear layer equivalent to a convolution followed by a flatten, else None.

        Its window covers the whole input; or it is a 1x1 convolution followed by a global average,
        and the levels are summed before it instead.
        """
        signal, kernel = pending.inputs, tuple(pending.weight.shape[2:])
        plain = {"padding": (0, 0), "dilation": (1, 1), "groups": 1}
        if any(pending.geometry.get(name) != value for name, value in plain.items()):
            return None
        if not pending.pools and pending.entering == kernel:
            flat = self._flat(signal, math.prod(kernel))
            return replace(pending, inputs=flat, weight=pending.weight.flatten(1), geometry={})
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
            terms.append(replace(term, source=source, max_size=term.max_size * size))
        flat = self._flat(replace(signal, terms=tuple(terms)), 1)
        bias = None if pending.bias is None else pending.bias * size
        weight = pending.weight.flatten(1)
        return replace(pending, inputs=flat, weight=weight, bias=bias, geometry={}, pools=())

    def unflatten(self, call: Call) -> _Value:
        """Time split from the batch."""
        if self._axes_of(call.args[0]) != "merged" or call.args[1] != 0:
            self._refuse(call, "only time that was merged into the batch is split from it")
        return self._moved(call, "time")

    def _moved(self, call: Call, axes: Axes) -> _Value:
        """Return the same tensor with other axes; it stays pending if more may be folded in."""
        pending = self._pending_of(call.args[0])
        here = self._readers.get(id(call.args[0]))  # before its arguments were made positional
        reader = self._readers.get(id(here)) if call.num_readers == 1 else None
        handler = reader and (_FUNCTIONS.get(reader.target) or _MODULES.get(reader.target))
        if pending is not None and handler in (_L.pool, _L.normalise, _L.flatten, _L.mean):
            return replace(pending, inputs=replace(pending.inputs, axes=axes))
        return replace(self._signal(call), axes=axes)

    def pass_on(self, call: Call) -> _Value:
        """The identity in eval mode."""
        return self._values[id(call.args[0])]

    def drop(self, call: Call) -> _Value:
        """Functional dropout, which drops unless ``training=False``."""
        if _argument(call, 2, "training", True) and _argument(call, 1, "p", 0.5):
            self._refuse(call, "it drops in eval mode too; pass training=self.training")
        return self.pass_on(call)

    def read_shape(self, call: Call) -> None:
        """A shape."""
        if call.shape is not None:
            self._refuse(call, "only shapes may be read, and it returns a tensor")

    def take(self, call: Call) -> _Value:
        """A part of a shape; or a tensor with a time axis of length 1, ``x[None]``."""
        if self._values[id(call.args[0])] is None:
            return self.read_shape(call)
        index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        rest = index[1:]
        is_whole = all(part == slice(None) or part is ... for part in rest)
        if index[0] is None and is_whole and self._axes_of(call.args[0]) == "static":
            return replace(self._signal(call), axes="once")
        return self._refuse(call, "it takes a part of a tensor")

    def _signal(self, call: Call) -> SymbolicValue:
        if not call.args or not isinstance(call.args[0], Call):
            self._refuse(call, "it takes no tensor first")
        return self._signal_of(call.args[0])

    def _signal_of(self, call: Call) -> SymbolicValue:
        """Return the value of a call; a pending mean over time is computed here."""
        signal = self._raw(call)
        if signal.axes != "mean":
            return signal
        currents = self._builder.as_currents(signal, call.path)
        path = self.network.add("readout", Readout("mean"), currents.source)
        mean = replace(signal, terms=(replace(currents, source=path),), axes="static")
        self._values[id(call)] = mean
        return mean

    def _raw(self, call: Call) -> SymbolicValue:
        """Return the value of a call; a mean over time may still be pending."""
        value = self._values[id(call)]
        if value is None:
            return self._refuse(call, "a shape is used as a tensor")
        return self._builder.materialize(value) if isinstance(value, PendingSynapse) else value

    def _pending_of(self, call: Call) -> PendingSynapse | None:
        """Return the pending synapse of a call that has one reader, else None."""
        value = self._values[id(call)]
        return value if isinstance(value, PendingSynapse) and call.num_readers == 1 else None

    def _axes_of(self, call: Call) -> Axes:
        value = self._values[id(call)]
        if value is None:
            return self._refuse(call, "a shape is used as a tensor")
        return (value.inputs if isinstance(value, PendingSynapse) else value).axes

    def _space(self, call: Call) -> tuple[int, ...]:
        assert call.shape is not None
        return call.shape[3 if self._axes_of(call) == "time" else 2 :]

    def _refuse(self, call: Call, why: str = "") -> Any:
        what = f"{call.name} in {call.path or 'the network itself'}"
        raise LoweringError(
            f"{what} cannot be lowered{': ' + why if why else ''}. Supported are convolutions, "
            f"linear layers, batch norms, pools, sums, concatenated channels and neurons"
        )


def _argument(call: Call, index: int, name: str, default: Any) -> Any:
    return call.args[index] if len(call.args) > index else call.kwargs.get(name, default)


def _axes(call: Call, name: str) -> tuple[int, ...]:
    axes = _argument(call, 1, name, ())
    return (axes,) if isinstance(axes, int) else tuple(axes)


_REPEAT = "Repeat a static current over time with lbq.RepeatOverTime(timesteps)"
_Handler = Callable[[_Lowering, Call], _Value]
_L = _Lowering
_POOLS = (F.max_pool2d, torch.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)
_FUNCTIONS: dict[Any, _Handler] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), _L.add),
    **dict.fromkeys((operator.mul, torch.mul, torch.multiply, "mul", "multiply"), _L.scale),
    **dict.fromkeys((operator.truediv, torch.div, torch.true_divide, "div"), _L.scale),
    **dict.fromkeys(_POOLS, _L.pool),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _L.concatenate),
    **dict.fromkeys((torch.stack,), _L.stack),
    **dict.fromkeys((torch.unsqueeze, "unsqueeze"), _L.unsqueeze),
    **dict.fromkeys(("expand", "repeat"), _L.expand),
    **dict.fromkeys((getattr, "size", "dim"), _L.read_shape),
    operator.getitem: _L.take,
    **dict.fromkeys((torch.clone, torch.detach, "contiguous", "clone", "detach"), _L.pass_on),
    F.dropout: _L.drop,
    **dict.fromkeys((torch.flatten, "flatten"), _L.flatten),
    **dict.fromkeys((torch.unflatten, "unflatten"), _L.unflatten),
    **dict.fromkeys((torch.mean, "mean"), _L.mean),
}
"""Handlers of functions, by identity, and of methods, by name."""
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("add", "iadd", "add_", "mul", "multiply"), ("input", "other")),
    **dict.fromkeys(("truediv", "div", "true_divide"), ("input", "other")),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), ("tensors", "dim")),
    "dropout": ("input", "p", "training", "inplace"),
    "flatten": ("input", "start_dim", "end_dim"),
    "unflatten": ("input", "dim", "sizes"),
    "unsqueeze": ("input", "dim"),
    "mean": ("input", "dim", "keepdim"),
}
"""Supported arguments of these functions; others would change the result."""
_MODULES: dict[type[nn.Module], _Handler] = {
    nn.Conv2d: _L.convolve,
    nn.Linear: _L.multiply,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _L.normalise),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _L.pool),
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout2d, ImagesIn, FramesIn), _L.pass_on),
    nn.Flatten: _L.flatten,
    RepeatOverTime: _L.repeat,
    MeanOverTime: _L.mean,
}
