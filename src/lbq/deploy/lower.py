"""``lower``: fold every batch norm, absorb every step, and leave a network of integer levels."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lbq.deploy.absorb import Draft, Signal, Term
from lbq.deploy.capture import Call, capture
from lbq.deploy.fold import fold_affine, norm_as_affine
from lbq.deploy.ladder import as_level_neuron
from lbq.deploy.network import INPUT, LoweredNetwork
from lbq.deploy.nodes import Merge, Pool, Readout, Repeat, Shortcut
from lbq.deploy.windows import Window, read_pool
from lbq.deploy.wiring import Wiring, one
from lbq.errors import LoweringError
from lbq.neurons.neuron import Neuron


def lower(model: nn.Module, example: Tensor) -> LoweredNetwork:
    """Take a trained network out of training: the same answers, integer levels between its layers.

    Batch norms are folded and steps absorbed in float64; the result has the model's dtype.

    Args:
        model: a network of synapses, batch norms, pools, sums and neurons, in any arrangement that
            torch.fx can trace. It is not changed.
        example: an input of the model, for its shapes.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> net(torch.randn(4, 3, 16, 16)).shape
        torch.Size([4, 10])
    """
    return _Lowering(model, example).network


_Value = Signal | Draft | None
"""What a call of the trained network gives; None for what is no tensor (shapes)."""


class _Lowering:
    def __init__(self, model: nn.Module, example: Tensor) -> None:
        floats = [p.dtype for p in model.parameters() if p.is_floating_point()]
        self._dtype = torch.promote_types(floats[0] if floats else torch.float32, torch.float32)
        has_time = example.dim() in (3, 5)
        example = example[:, :1] if has_time else example[:1]
        calls = capture(model, example)
        shape = tuple(example.shape[2 if has_time else 1 :])
        steps = [len(example)] if has_time else [c.says["timesteps"] for c in calls if c.says]
        if not steps:
            raise LoweringError(
                "this network never repeats its still input over time (RepeatOverTime), so it has "
                "no timesteps; pass frames [T, B, ...] as the example, or repeat the current"
            )
        self.network = LoweredNetwork(timesteps=steps[0], input_shape=shape, takes_frames=has_time)
        self._wiring = Wiring(self.network, self._dtype)
        self._values: dict[int, _Value] = {}
        for call in calls:
            self._values[id(call)] = self._lower(call, has_time)
        self._check_answer(calls[-1], example)

    # what the network does, call by call

    def _lower(self, call: Call, has_time: bool) -> _Value:
        if call.kind == "input":
            shape = self.network.input_shape
            term = Term(source=INPUT, scale=one(), max_size=None, channels=shape[0] if shape else 1)
            return Signal(
                terms=(term,), axes="time" if has_time else "still", is_flat=len(shape) < 2
            )
        if call.kind == "output":
            return self._output(call)
        if call.kind == "attribute":
            return self._refuse(call, "it reads a tensor of its own")
        if call.module is not None:
            return self._module(call, call.module)
        handler = _FUNCTIONS.get(call.name)
        return handler(self, self._named(call)) if handler else self._refuse(call)

    def _named(self, call: Call) -> Call:
        """Put arguments that were given by name in their places; refuse those that nobody knows."""
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
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._synapse(call, module)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            return self._norm(call, module)
        handler = _MODULES.get(call.name)
        return handler(self, call) if handler else self._refuse(call)

    def _synapse(self, call: Call, layer: nn.Conv2d | nn.Linear) -> Draft:
        signal = self._signal(call)
        if isinstance(layer, nn.Conv2d):
            if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
                self._refuse(call, "only zeros are padded, by numbers")
        elif not signal.is_flat and self._space(call.args[0]) != ():
            self._refuse(call, "a linear layer reads features; flatten first")
        bias = None if layer.bias is None else layer.bias.detach().double()
        weight = layer.weight.detach().double()
        return Draft(path=call.path, inputs=signal, weight=weight, bias=bias, layer=layer)

    def _norm(self, call: Call, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> _Value:
        gain, offset = norm_as_affine(norm, path=call.path)
        before: Call = call.args[0]
        value = self._values[id(before)]
        if isinstance(value, Draft) and before.num_readers == 1:
            weight, bias = fold_affine(value.weight, value.bias, gain, offset)
            return replace(value, weight=weight, bias=bias)
        signal = self._signal(call)
        if len(signal.terms) != 1:
            self._refuse(call, "it normalises a sum")
        (term,) = signal.terms
        path = self.network.add(
            call.path,
            Shortcut(
                self._wiring.stored(term.scale * gain),
                self._wiring.stored(offset),
                max_input=term.max_size,
                is_still=signal.axes == "still",
            ),
            term.source,
        )
        return self._wiring.currents(path, like=signal, channels=len(gain))

    def _neuron(self, call: Call, neuron: Neuron) -> Signal:
        signal = self._signal(call)
        if signal.axes != "time":
            self._refuse(call, "a neuron takes [T, B, ...]; repeat or unfold before it")
        currents = self._wiring.as_currents(signal, call.path)
        node, step = as_level_neuron(neuron, path=call.path, dtype=self._dtype)
        assert call.shape is not None
        path = self.network.add(call.path, node, currents)
        term = Term(source=path, scale=step, max_size=node.max_level, channels=call.shape[2])
        return replace(signal, terms=(term,))

    def _output(self, call: Call) -> None:
        value = call.args[0]
        if not isinstance(value, Call):
            self._refuse(call, "the output must be one tensor")
        signal = self._signal(call)
        last = self.network.plan[-1].path if self.network.plan else ""
        (first, *rest) = signal.terms
        is_last = not rest and first.source == last and first.is_current
        if not (is_last and isinstance(self.network.get_submodule(last), Readout)):
            self.network.add(
                "readout", Readout("none"), self._wiring.as_currents(signal, "readout")
            )

    def _check_answer(self, output: Call, example: Tensor) -> None:
        """Complain if the answer has another shape than the trained network's."""
        with torch.no_grad():
            found = tuple(self.network(example.to(self._dtype)).shape)
        expected: tuple[int, ...] | None = output.args[0].shape
        if found != expected:
            raise LoweringError(
                f"this network answers {expected}, and lowered it would answer {found}: something "
                f"in it was not understood; please report it"
            )

    def mean(self, call: Call) -> Signal:
        """A mean over time (the answer), or over space."""
        signal, axes = self._signal(call), _axes(call, "dim")
        assert call.args[0].shape is not None
        rank = len(call.args[0].shape)
        keeps_axes = call.module is None and _argument(call, 2, "keepdim", False)
        leading = 2 if signal.axes == "time" else 1
        if call.module is not None or (axes == (0,) and signal.axes == "time"):
            if any(term.max_size is not None for term in signal.terms):
                self._refuse(call, "levels are averaged over time; average behind the classifier")
            if keeps_axes:
                self._refuse(call, "it keeps the axis of time (keepdim)")
            path = self.network.add(
                "readout", Readout("mean"), self._wiring.as_currents(signal, call.path)
            )
            answer = self._wiring.currents(path, like=signal, channels=signal.channels)
            return replace(answer, axes="still")
        if rank == leading + 3 and {a % rank for a in axes} == {rank - 2, rank - 1}:
            pooled = self._pool(call, signal, Window(is_max=False, kernel=None))
            return replace(pooled, is_flat=not keeps_axes)
        return self._refuse(call, f"it averages over axes {axes}")

    def pool(self, call: Call) -> Signal:
        """A pool of torch's, as a module or a function."""
        window = read_pool(call.module, call.name, call.args[1:], call.kwargs)
        if isinstance(window, str):
            return self._refuse(call, window)
        return self._pool(call, self._signal(call), window)

    def _pool(self, call: Call, signal: Signal, window: Window) -> Signal:
        if window.is_max and len(signal.terms) != 1:
            self._refuse(call, "the largest of a sum is no level")
        space = self._space(call.args[0])
        kernel = window.kernel or (space[0], space[1])
        size = math.prod(kernel)
        terms: list[Term] = []
        for term in signal.terms:
            if window.is_max and not bool((term.scale > 0).all()):
                self._refuse(call, "the largest of negative multiples is the smallest level")
            node = Pool(
                "max" if window.is_max else "sum",
                kernel=kernel,
                stride=window.stride,
                padding=window.padding,
                is_still=signal.axes == "still",
            )
            path = self.network.add(
                call.path if call.module else f"{call.path}.pool".lstrip("."), node, term.source
            )
            if window.is_max:
                terms.append(replace(term, source=path))
            else:
                largest = None if term.max_size is None else term.max_size * size
                terms.append(replace(term.scaled(1 / size), source=path, max_size=largest))
        return replace(signal, terms=tuple(terms))

    def repeat(self, call: Call) -> Signal:
        """A still current shown at every timestep."""
        signal = self._signal(call)
        currents = self._wiring.as_currents(signal, call.path)
        path = self.network.add(call.path, Repeat(call.says["timesteps"]), currents)
        repeated = self._wiring.currents(path, like=signal, channels=signal.terms[0].channels)
        return replace(repeated, axes="time")

    def add(self, call: Call) -> _Value:
        """A sum of two signals, or of a signal and nothing."""
        left, right = call.args[:2]
        if not (isinstance(left, Call) and isinstance(right, Call)):
            number = right if isinstance(left, Call) else left
            if number != 0:
                self._refuse(call, "a number is added")
            return self._values[id(left if isinstance(left, Call) else right)]
        if left.shape != right.shape:
            self._refuse(call, f"shapes {left.shape} and {right.shape} are added")
        signals = [self._signal_of(side) for side in (left, right)]
        if signals[0].channels != signals[1].channels:
            self._refuse(call, "one side was flattened from channels and the other was not")
        if all(term.max_size is not None for signal in signals for term in signal.terms):
            return signals[0].added(signals[1])  # bursts: they enter a synapse branch by branch
        inputs = [
            name for signal in signals for name in self._wiring.all_currents(signal, call.path)
        ]
        path = self.network.add(f"{call.path}.merge".lstrip("."), Merge(), *inputs)
        return self._wiring.currents(path, like=signals[0], channels=signals[0].terms[0].channels)

    def scale(self, call: Call) -> Signal:
        """A product with, or a quotient by, a positive number."""
        left, right = call.args[:2]
        number = right if isinstance(left, Call) else left
        if not isinstance(number, int | float) or number <= 0:
            self._refuse(call, "only positive numbers multiply a signal")
        if "div" in call.name:
            if not isinstance(left, Call):
                self._refuse(call, "a number is divided by a signal")
            number = 1 / number
        signal = self._signal_of(left if isinstance(left, Call) else right)
        return replace(signal, terms=tuple(term.scaled(number) for term in signal.terms))

    def concatenate(self, call: Call) -> Signal:
        """Channels side by side."""
        parts: list[Call] = list(call.args[0])
        signals = [self._signal_of(part) for part in parts]
        (axis,) = _axes(call, "dim") or (0,)
        assert call.shape is not None
        if axis % len(call.shape) != (2 if signals[0].axes == "time" else 1):
            self._refuse(call, "only channels are concatenated")
        terms: list[Term] = []
        first = 0
        for part, signal in zip(parts, signals, strict=True):
            assert part.shape is not None
            if signal.channels != part.shape[2 if signal.axes == "time" else 1]:
                self._refuse(call, "flattened channels are concatenated; flatten behind it")
            terms += [replace(t, first_channel=t.first_channel + first) for t in signal.terms]
            first += part.shape[2 if signal.axes == "time" else 1]
        return replace(signals[0], terms=tuple(terms))

    def flatten(self, call: Call) -> Signal:
        """Time folded into the batch, or channels and space into features."""
        signal = self._signal(call)
        module = call.module
        if isinstance(module, nn.Flatten):
            start, end = module.start_dim, module.end_dim
        else:
            start, end = _argument(call, 1, "start_dim", 0), _argument(call, 2, "end_dim", -1)
        if (start, end) == (0, 1) and signal.axes == "time":
            return replace(signal, axes="folded")
        leading = 2 if signal.axes == "time" else 1
        if start == leading and end == -1:
            return replace(signal, is_flat=True)
        return self._refuse(call, f"it flattens axes {start}..{end}")

    def unflatten(self, call: Call) -> Signal:
        """Time unfolded from the batch."""
        signal = self._signal(call)
        if signal.axes != "folded" or call.args[1] != 0:
            self._refuse(call, "only time is unfolded, and only where it was folded")
        return replace(signal, axes="time")

    def pass_on(self, call: Call) -> _Value:
        """What does nothing in eval mode."""
        return self._values[id(call.args[0])]

    def drop(self, call: Call) -> _Value:
        """A dropout that is a function: it drops whenever it is not told that training is over."""
        if _argument(call, 2, "training", True) and _argument(call, 1, "p", 0.5):
            self._refuse(call, "it drops in eval mode too; pass training=self.training")
        return self.pass_on(call)

    def ask(self, call: Call) -> None:
        """A question about a shape."""
        del call

    def _signal(self, call: Call) -> Signal:
        if not call.args or not isinstance(call.args[0], Call):
            self._refuse(call, "it takes no tensor first")
        return self._signal_of(call.args[0])

    def _signal_of(self, call: Call) -> Signal:
        value = self._values[id(call)]
        if value is None:
            return self._refuse(call, "a shape is used as a tensor")
        return self._wiring.settle(value) if isinstance(value, Draft) else value

    def _space(self, call: Call) -> tuple[int, ...]:
        assert call.shape is not None
        return call.shape[3 if self._signal_of(call).axes == "time" else 2 :]

    def _refuse(self, call: Call, why: str = "") -> Any:
        what = f"{call.name} in {call.path or 'the network itself'}"
        raise LoweringError(
            f"{what} cannot be lowered{': ' + why if why else ''}. A lowered network knows "
            f"convolutions, linear layers, batch norms, pools, sums, concatenated channels and "
            f"neurons"
        )


def _argument(call: Call, index: int, name: str, default: Any) -> Any:
    return call.args[index] if len(call.args) > index else call.kwargs.get(name, default)


def _axes(call: Call, name: str) -> tuple[int, ...]:
    axes = _argument(call, 1, name, ())
    return (axes,) if isinstance(axes, int) else tuple(axes)


_Handler = Callable[[_Lowering, Call], _Value]
_L = _Lowering
_POOLS = ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "boolean_dispatch", "_max_pool2d")
_FUNCTIONS: dict[str, _Handler] = {
    **dict.fromkeys(("add", "iadd", "add_"), _L.add),
    **dict.fromkeys(("mul", "truediv", "div"), _L.scale),
    **dict.fromkeys(_POOLS, _L.pool),
    **dict.fromkeys(("cat", "concat"), _L.concatenate),
    **dict.fromkeys(("getattr", "getitem", "size", "dim"), _L.ask),
    **dict.fromkeys(("contiguous", "clone", "detach"), _L.pass_on),
    "dropout": _L.drop,
    "flatten": _L.flatten,
    "unflatten": _L.unflatten,
    "mean": _L.mean,
}
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("add", "iadd", "add_", "mul", "truediv", "div"), ("input", "other")),
    **dict.fromkeys(("cat", "concat"), ("tensors", "dim")),
    "dropout": ("input", "p", "training", "inplace"),
    "flatten": ("input", "start_dim", "end_dim"),
    "unflatten": ("input", "dim", "sizes"),
    "mean": ("input", "dim", "keepdim"),
}
"""What these functions may be called with; anything else would change what they compute."""
_MODULES: dict[str, _Handler] = {
    **dict.fromkeys(("MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d"), _L.pool),
    **dict.fromkeys(("Identity", "Dropout", "Dropout2d", "ImagesIn", "FramesIn"), _L.pass_on),
    "Flatten": _L.flatten,
    **dict.fromkeys(("RepeatOverTime", "RepeatStill"), _L.repeat),
    "MeanOverTime": _L.mean,
}
