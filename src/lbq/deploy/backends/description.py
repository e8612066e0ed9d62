"""An integer network as the native engine takes it: the structs of ``native/engine/c_api.h``."""

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from lbq.deploy.bounds import Bound, prove
from lbq.deploy.lowered_network import INPUT, LoweredNetwork, NodeRef
from lbq.deploy.nodes import IntegerNeuron, Merge, Pool, Readout, Repeat, Shortcut, Synapse
from lbq.errors import LoweringError

Shape = tuple[int, int, int]
"""Channels, height and width; features have one pixel."""

KINDS = (Synapse, Shortcut, Merge, Pool, Repeat, IntegerNeuron, Readout)
RESETS = ("event", "level", "zero", "none")
_PAIRS = ("kernel", "stride", "padding", "dilation")


class _Integers(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class _Node(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("num_inputs", ctypes.c_int64),
        ("inputs", ctypes.POINTER(ctypes.c_int32)),
        *((name, ctypes.c_int64 * 3) for name in ("from_", "to")),
        *((name, ctypes.c_int64) for name in ("has_time", "low", "high", "bits")),
        *((name, ctypes.c_int64 * 2) for name in _PAIRS),
        *(
            (name, ctypes.c_int64)
            for name in ("is_linear", "groups", "weight_bits", "max_input", "pools_max")
        ),
        *((name, _Integers) for name in ("weight", "bias", "thresholds", "reset_amount")),
        *(
            (name, ctypes.c_int64)
            for name in ("max_level", "multiplier", "shift", "reset", "resets_after_decay")
        ),
        ("sums_over_time", ctypes.c_int64),
    )


class Description(ctypes.Structure):
    """A whole network; what it points at lives as long as :class:`NetworkDescription`."""

    _fields_ = (
        ("timesteps", ctypes.c_int64),
        ("takes_frames", ctypes.c_int64),
        ("input", ctypes.c_int64 * 3),
        ("num_nodes", ctypes.c_int64),
        ("nodes", ctypes.POINTER(_Node)),
    )


class NetworkDescription:
    """The description of an integer network, and everything that it points at.

    Args:
        network: what :func:`lbq.to_fixed_point` returned; its bounds are proven here.
    """

    def __init__(self, network: LoweredNetwork) -> None:
        if not network.is_integer:
            raise LoweringError(
                "the native engine runs networks of integers, this one is of real numbers; "
                "turn it into one with lbq.to_fixed_point"
            )
        self._alive: list[Any] = []
        self._numbers = {INPUT: -1} | {place.path: i for i, place in enumerate(network.plan)}
        self.shapes: dict[str, Shape] = {INPUT: _three(network.input_shape)}
        self.has_places = {INPUT: len(network.input_shape) == 3}
        self.has_time = {INPUT: network.takes_frames}
        self._are_currents = {INPUT: False}
        for place, node in network.nodes():
            first = place.inputs[0]
            why = self._why_not(place, node, network)
            if why is not None:
                raise LoweringError(f"the native engine does not run {place.path}: {why}")
            self.shapes[place.path] = output_shape(node, self.shapes[first])
            self.has_places[place.path] = _has_places(node, self.has_places[first])
            self.has_time[place.path] = _gives_time(node, self.has_time[first])
            gives_levels = isinstance(node, IntegerNeuron) or (
                isinstance(node, Pool) and not self._are_currents[first]
            )
            self._are_currents[place.path] = not gives_levels
        bounds = prove(network)
        nodes = [
            self._describe(place.path, place.inputs, node, bounds.get(place.path))
            for place, node in network.nodes()
        ]
        array = (_Node * len(nodes))(*nodes)
        self._alive.append(array)
        self.struct = Description(
            network.timesteps,
            network.takes_frames,
            (ctypes.c_int64 * 3)(*self.shapes[INPUT]),
            len(nodes),
            array,
        )

    def _why_not(self, place: NodeRef, node: nn.Module, network: LoweredNetwork) -> str | None:
        """Say why the engine was not made for a node where it is; None if it was."""
        if type(node) not in KINDS:
            return f"a {type(node).__name__} is none of its nodes"
        is_last = place == network.plan[-1]
        if isinstance(node, Readout) != is_last:
            return "a network ends with its only readout"
        if not is_last and not any(place.path in other.inputs for other in network.plan):
            return "nothing reads it"
        shapes = {self.shapes[name] for name in place.inputs}
        times = {self.has_time[name] for name in place.inputs}
        if not place.inputs or len(shapes) > 1 or len(times) > 1:
            return f"it reads shapes {sorted(shapes)}, or mixes still and moving inputs"
        (has_time,), (shape,) = times, shapes
        if isinstance(node, Merge | Repeat | IntegerNeuron | Readout):
            if not all(self._are_currents[name] for name in place.inputs):
                return "it takes currents, and reads levels or the input"
            if not isinstance(node, Merge) and has_time == isinstance(node, Repeat):
                return "it repeats what has time already" if has_time else "it reads a still input"
        elif has_time != node.has_time:  # pyright: ignore[reportAttributeAccessIssue]
            return "has_time contradicts what it reads"
        if isinstance(node, Repeat) and node.timesteps != network.timesteps:
            return f"it repeats {node.timesteps} times in a network of {network.timesteps}"
        return _why_no_shape(node, shape)

    def torch_shape(self, path: str) -> tuple[int, ...]:
        """Return the shape of what a node gives as torch has it: features without places."""
        return self.shapes[path] if self.has_places[path] else self.shapes[path][:1]

    def _describe(
        self, path: str, inputs: Sequence[str], node: nn.Module, bound: Bound | None
    ) -> _Node:
        numbers = (ctypes.c_int32 * len(inputs))(*(self._numbers[name] for name in inputs))
        self._alive.append(numbers)
        made = _Node(kind=KINDS.index(type(node)), num_inputs=len(inputs), inputs=numbers, groups=1)
        made.from_[:], made.to[:] = self.shapes[inputs[0]], self.shapes[path]
        made.has_time = self.has_time[path]
        for name in _PAIRS:
            getattr(made, name)[:] = (0, 0) if name == "padding" else (1, 1)
        if bound is not None:
            made.low, made.high, made.bits = bound.low, bound.high, bound.bits
        for name, value in _settings(node):
            if isinstance(value, int):
                setattr(made, name, value)
            else:
                getattr(made, name)[:] = value
        for name in ("weight", "bias", "thresholds", "reset_amount"):
            if isinstance(getattr(node, name, None), Tensor):
                setattr(made, name, self._integers(getattr(node, name)))
        return made

    def _integers(self, tensor: Tensor) -> _Integers:
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        self._alive.append(array)
        return _Integers(array.ctypes.data, array.itemsize, array.size)


def output_shape(node: nn.Module, shape: Shape) -> Shape:
    """Return the shape of what a node gives, per sample and instant."""
    if isinstance(node, Synapse):
        if node.is_linear:
            return (node.weight.shape[0], 1, 1)
        kernel, reach = node.weight.shape[2:], node.dilation
        window = (kernel, node.stride, node.padding, reach)
        return (node.weight.shape[0], *_places(shape, *window))
    if isinstance(node, Pool):
        return (shape[0], *_places(shape, node.kernel, node.stride, node.padding, (1, 1)))
    return shape


def _why_no_shape(node: nn.Module, shape: Shape) -> str | None:
    """Say why a node cannot read values of this shape; None if it can."""
    channels, where = shape[0], f"it reads values of shape {shape}"
    if isinstance(node, Synapse) and node.is_linear:
        if node.weight.shape[1] != math.prod(shape):
            return f"{where} with weights of {tuple(node.weight.shape)}"
    elif isinstance(node, Synapse):
        outputs, inputs = node.weight.shape[:2]
        if inputs * node.groups != channels or outputs % node.groups:
            return f"{where} with weights of {tuple(node.weight.shape)} in {node.groups} groups"
    elif isinstance(node, Shortcut | IntegerNeuron):
        per_channel = (
            [node.weight] if isinstance(node, Shortcut) else [node.thresholds[0], node.reset_amount]
        )
        sizes = [values.numel() for values in per_channel]
        if not set(sizes) <= {1, channels}:
            return f"{where} with {max(sizes)} numbers for its channels"
    elif isinstance(node, Pool) and any(
        2 * pad > size for pad, size in zip(node.padding, node.kernel, strict=True)
    ):
        return f"it pads {node.padding} around windows of {node.kernel}"
    after = output_shape(node, shape)
    if min(after) < 1:
        return f"{where}, which is smaller than its window"
    bias = getattr(node, "bias", None)
    if bias is not None and bias.numel() not in (1, after[0], math.prod(after)):
        return f"its bias has {bias.numel()} numbers, and it gives {after}"
    return None


def _places(
    shape: Shape,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    height, width = (
        (size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i, size in enumerate(shape[1:])
    )
    return height, width


def _settings(node: nn.Module) -> Iterator[tuple[str, int | tuple[int, ...]]]:
    """Yield what the struct of a node holds beside shapes, bounds and tensors."""
    if isinstance(node, Synapse | Shortcut):
        assert node.max_input is not None  # integers
        yield "max_input", node.max_input
    if isinstance(node, Synapse):
        yield "weight_bits", 8 * node.weight.dtype.itemsize if node.bits is None else node.bits
        yield "is_linear", node.is_linear
        if not node.is_linear:
            yield "kernel", tuple(node.weight.shape[2:])
            yield "stride", node.stride
            yield "padding", node.padding
            yield "dilation", node.dilation
            yield "groups", node.groups
    elif isinstance(node, Pool):
        yield "kernel", node.kernel
        yield "stride", node.stride
        yield "padding", node.padding
        yield "pools_max", node.kind == "max"
    elif isinstance(node, IntegerNeuron):
        yield "max_level", node.max_level
        yield "multiplier", node.multiplier
        yield "shift", node.shift
        yield "reset", RESETS.index(node.reset)
        yield "resets_after_decay", node.resets_after_decay
    elif isinstance(node, Readout):
        yield "sums_over_time", node.over_time == "sum"


def _has_places(node: nn.Module, before: bool) -> bool:
    return not node.is_linear if isinstance(node, Synapse) else before


def _gives_time(node: nn.Module, has_time: bool) -> bool:
    if isinstance(node, Repeat | IntegerNeuron):
        return True
    return has_time and not (isinstance(node, Readout) and node.over_time == "sum")


def _three(shape: Sequence[int]) -> Shape:
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)


@dataclass(frozen=True, eq=False)
class BufferSnapshot:
    """The numbers of a network at some moment: the tensors themselves, and how often written."""

    buffers: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, network: LoweredNetwork) -> "BufferSnapshot":
        """Remember the numbers that a network has now."""
        found = tuple(buffer for _, node in network.nodes() for buffer in node.buffers())
        return cls(found, tuple(map(_version, found)))

    def matches(self, network: LoweredNetwork) -> bool:
        """Say whether nobody replaced them or wrote into them since."""
        now = BufferSnapshot.of(network)
        return self.versions == now.versions and all(
            mine is theirs for mine, theirs in zip(self.buffers, now.buffers, strict=True)
        )


def _version(buffer: Tensor) -> int:
    """Count how often a tensor was written into; inference tensors do not count."""
    return 0 if buffer.is_inference() else buffer._version
