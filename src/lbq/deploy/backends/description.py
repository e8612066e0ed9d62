"""An integer network as the native engine takes it: the structs of ``native/engine/door.h``."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from lbq.deploy.bounds import Bound, prove
from lbq.deploy.network import INPUT, LoweredNetwork
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
        *((name, ctypes.c_int64) for name in ("is_still", "low", "high", "bits")),
        *((name, ctypes.c_int64 * 2) for name in _PAIRS),
        *(
            (name, ctypes.c_int64)
            for name in ("is_linear", "groups", "weight_bits", "max_input", "pools_max")
        ),
        *((name, _Integers) for name in ("weight", "bias", "ladder", "removed")),
        *(
            (name, ctypes.c_int64)
            for name in ("max_level", "multiplier", "shift", "reset", "resets_after_decay")
        ),
        ("sums_over_time", ctypes.c_int64),
    )


class Description(ctypes.Structure):
    """A whole network; what it points at lives as long as :class:`Described`."""

    _fields_ = (
        ("timesteps", ctypes.c_int64),
        ("takes_frames", ctypes.c_int64),
        ("input", ctypes.c_int64 * 3),
        ("num_nodes", ctypes.c_int64),
        ("nodes", ctypes.POINTER(_Node)),
    )


class Described:
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
        bounds = prove(network)
        self.shapes: dict[str, Shape] = {INPUT: _three(network.input_shape)}
        self.has_places = {INPUT: len(network.input_shape) == 3}
        self.is_still = {INPUT: not network.takes_frames}
        nodes: list[_Node] = []
        for place, node in network.nodes():
            first = place.inputs[0]
            self.shapes[place.path] = shape_behind(node, self.shapes[first])
            self.has_places[place.path] = _has_places(node, self.has_places[first])
            self.is_still[place.path] = _gives_still(node, self.is_still[first])
            nodes.append(self._describe(place.path, place.inputs, node, bounds.get(place.path)))
        array = (_Node * len(nodes))(*nodes)
        self._alive.append(array)
        self.struct = Description(
            network.timesteps,
            network.takes_frames,
            (ctypes.c_int64 * 3)(*self.shapes[INPUT]),
            len(nodes),
            array,
        )

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
        made.is_still = self.is_still[path]
        for name in _PAIRS:
            getattr(made, name)[:] = (0, 0) if name == "padding" else (1, 1)
        if bound is not None:
            made.low, made.high, made.bits = bound.low, bound.high, bound.bits
        for name, value in _settings(node):
            if isinstance(value, int):
                setattr(made, name, value)
            else:
                getattr(made, name)[:] = value
        for name in ("weight", "bias", "ladder", "removed"):
            if isinstance(getattr(node, name, None), Tensor):
                setattr(made, name, self._integers(getattr(node, name)))
        return made

    def _integers(self, tensor: Tensor) -> _Integers:
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        self._alive.append(array)
        return _Integers(array.ctypes.data, array.itemsize, array.size)


def shape_behind(node: nn.Module, shape: Shape) -> Shape:
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


def _gives_still(node: nn.Module, is_still: bool) -> bool:
    if isinstance(node, Repeat | IntegerNeuron):
        return False
    return is_still or (isinstance(node, Readout) and node.over_time == "sum")


def _three(shape: Sequence[int]) -> Shape:
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of a network at some moment: the tensors themselves, and how often written."""

    buffers: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, network: LoweredNetwork) -> "Numbers":
        """Remember the numbers that a network has now."""
        found = tuple(buffer for _, node in network.nodes() for buffer in node.buffers())
        return cls(found, tuple(map(_version, found)))

    def are_those_of(self, network: LoweredNetwork) -> bool:
        """Say whether nobody replaced them or wrote into them since."""
        now = Numbers.of(network)
        return self.versions == now.versions and all(
            mine is theirs for mine, theirs in zip(self.buffers, now.buffers, strict=True)
        )


def _version(buffer: Tensor) -> int:
    """Count how often a tensor was written into; inference tensors do not count."""
    return 0 if buffer.is_inference() else buffer._version
