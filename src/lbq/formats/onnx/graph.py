"""An ONNX graph under construction: operators, values over time, threshold search, the file.

The graph is written operator by operator. A tracer (torch.onnx) would choose the operators itself,
and exactness depends on that choice.
"""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from lbq.atomic_files import atomic_write
from lbq.errors import FormatError, MissingExtraError, install_command
from lbq.formats.metadata import read_metadata

OPSET = 20
"""Version of the operators: the first that both ONNX Runtime and OpenVINO support fully."""
IR_VERSION = 9
"""Version of the file format that belongs to it."""
METADATA_KEY = "lbq"
"""The key of the metadata, which are JSON."""
OPENVINO_CONFIG = {"INFERENCE_PRECISION_HINT": "f32"}
"""Settings for compiling a file in OpenVINO. OpenVINO reads no settings from ONNX files. Without
these it computes float32 in bfloat16 on CPUs that support it."""
_ONNX_METADATA = {"style": str, "levels": list, "num_inexact_channels": int}
"""Additional metadata of an ONNX file, with their types."""


class Graph:
    """Operators in execution order; every value is named ``path of its node/operator``."""

    def __init__(self) -> None:
        self._onnx = _import_onnx()
        self._nodes: list[Any] = []
        self._constants: dict[tuple[Any, ...], str] = {}
        self._tensors: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._taken: set[str] = set()
        self._path = ""

    @contextmanager
    def at(self, path: str) -> Generator[None]:
        """Name the operators added inside the block after the node at this path."""
        before, self._path = self._path, path
        try:
            yield
        finally:
            self._path = before

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator with one output; return the output's name."""
        return self._op(kind, inputs, 1, attributes)[0]

    def chain(self, kind: str, values: Sequence[str]) -> str:
        """Combine values by an operator of two inputs, from left to right."""
        return reduce(lambda total, value: self.op(kind, total, value), values)

    def split(self, value: str, parts: int) -> list[str]:
        """Cut the first axis into equal parts."""
        return self._op("Split", (value,), parts, {"axis": 0, "num_outputs": parts})

    def cast(self, value: str, dtype: type[np.generic]) -> str:
        """Convert to another type."""
        return self.op("Cast", value, to=self._element(dtype))

    def constant(self, values: Tensor | np.ndarray | int | float, dtype: type[np.generic]) -> str:
        """Store a constant; store equal constants once."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        stored = np.ascontiguousarray(array.astype(dtype)).reshape(array.shape)
        key = (stored.dtype.str, stored.shape, stored.tobytes())
        if key not in self._constants:
            name = self._unique("constant")
            self._constants[key] = name
            self._tensors.append(self._onnx.numpy_helper.from_array(stored, name))
        return self._constants[key]

    def input(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> str:
        """Declare an input; strings in the shape are variable sizes."""
        self._inputs.append(self._value(name, dtype, shape))
        return name

    def output(
        self, value: str, name: str, dtype: type[np.generic], shape: Sequence[int | str]
    ) -> None:
        """Declare that this value is an output of this name."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._value(name, dtype, shape))

    def save(self, path: Path, metadata: dict[str, Any]) -> None:
        """Check the whole graph and write it, atomically."""
        helper = self._onnx.helper
        nodes, read = self._needed()
        tensors = [tensor for tensor in self._tensors if tensor.name in read]
        graph = helper.make_graph(nodes, "lbq", self._inputs, self._outputs, initializer=tensors)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="lbq"
        )
        helper.set_model_props(
            model,
            {METADATA_KEY: json.dumps(metadata), "openvino_config": json.dumps(OPENVINO_CONFIG)},
        )
        self._onnx.checker.check_model(model, full_check=True)
        atomic_write(path, cast(bytes, model.SerializeToString()))

    def _needed(self) -> tuple[list[Any], set[str]]:
        """Return the operators that an output depends on, and all values that they read.

        The others are removed, because engines would run them.
        """
        read = {output.name for output in self._outputs}
        needed: list[Any] = []
        for node in reversed(self._nodes):
            if read.intersection(node.output):
                needed.append(node)
                read.update(node.input)
        return needed[::-1], read

    def _op(
        self, kind: str, inputs: Sequence[str], num_outputs: int, attributes: dict[str, Any]
    ) -> list[str]:
        name = self._unique(kind)
        outputs = [name] if num_outputs == 1 else [f"{name}:{k}" for k in range(num_outputs)]
        made = self._onnx.helper.make_node(kind, list(inputs), outputs, name=name, **attributes)
        self._nodes.append(made)
        return outputs

    def _unique(self, kind: str) -> str:
        name, number = f"{self._path}/{kind}", 2
        while name in self._taken:
            name, number = f"{self._path}/{kind}_{number}", number + 1
        self._taken.add(name)
        return name

    def _value(self, name: str, dtype: type[np.generic], shape: Sequence[int | str]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._element(dtype), list(shape))

    def _element(self, dtype: type[np.generic]) -> int:
        return self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def read_onnx_metadata(path: str | Path) -> dict[str, Any]:
    """Read the metadata of an exported file: timesteps, shapes, scale, origin."""
    model = _import_onnx().ModelProto()
    try:
        model.ParseFromString(Path(path).read_bytes())
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise FormatError(f"{path} is not an ONNX file: {error}") from error
    for fact in model.metadata_props:
        if fact.key == METADATA_KEY:
            return read_metadata(fact.value, source=str(path), more=_ONNX_METADATA)
    raise FormatError(
        f"{path} has no metadata of lbq; it was not written by lbq.formats.export_onnx"
    )


def _import_onnx() -> Any:
    try:
        import onnx  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"ONNX files need onnx: {install_command('onnx')}") from error
    return onnx


Time = Literal["still", "shown", "moving"]
"""Without a time axis; the same value at every timestep; a different value at every timestep."""


@dataclass
class TimedValue:
    """A value of the graph at every timestep.

    Args:
        time: how the value depends on time.
        shape: shape for one sample and timestep.
        timesteps: number of timesteps (T).
        folded: name of all timesteps in one batch, ``[T * B, *shape]``; ``[B, *shape]`` for a still
            or shown value.
        instants: names of the single timesteps, ``[B, *shape]`` each.
        low: smallest integer that it can hold; unused for real numbers.
        high: largest integer that it can hold.
        is_byte: whether its integers are stored as uint8 instead of int32.
    """

    time: Time
    shape: tuple[int, ...]
    timesteps: int
    folded: str | None = None
    instants: list[str] = field(default_factory=list[str])
    low: int = 0
    high: int = 0
    is_byte: bool = False

    @property
    def largest(self) -> int:
        """The largest absolute value that it can hold."""
        return max(-self.low, self.high)

    def batch(self, graph: Graph) -> str:
        """Return the name of the value with all timesteps in one batch."""
        if self.folded is None:
            self.folded = join(graph, self.instants)
        return self.folded

    def with_all_instants(self, graph: Graph) -> "TimedValue":
        """Return the same value as ``[T * B, *shape]``; repeat a shown value."""
        if self.time != "shown":
            return self
        return replace(self, time="moving", folded=join(graph, self.by_instant(graph)))

    def by_instant(self, graph: Graph) -> list[str]:
        """Return the names of all timesteps."""
        if self.time != "moving":
            return [self.batch(graph)] * self.timesteps
        if not self.instants:
            assert self.folded is not None
            one = self.timesteps == 1
            self.instants = [self.folded] if one else graph.split(self.folded, self.timesteps)
        return self.instants


def join(graph: Graph, instants: list[str]) -> str:
    """Concatenate timesteps in one batch, ``[T * B, ...]``."""
    return instants[0] if len(instants) == 1 else graph.op("Concat", *instants, axis=0)


def stack(graph: Graph, instants: list[str]) -> str:
    """Stack timesteps along a new time axis, ``[T, B, ...]``."""
    axis = graph.constant(np.array([0]), np.int64)
    rows = [graph.op("Unsqueeze", instant, axis) for instant in instants]
    return join(graph, rows)


UNROLLED = 16
"""Up to so many thresholds all are compared, because a search has about as many operators."""


class ThresholdSearch:
    """The thresholds of a neuron as a table that a binary search reads.

    Args:
        graph: receives the operators.
        thresholds: ``[N, 1]`` or ``[N, C]``, never falling.
        shape: shape of the membrane for one sample and timestep.
        dtype: dtype of the membrane.
    """

    def __init__(
        self, graph: Graph, thresholds: Tensor, *, shape: tuple[int, ...], dtype: type[np.generic]
    ) -> None:
        self._graph, self._dtype, self._num = graph, dtype, len(thresholds)
        self._bits = self._num.bit_length()
        # Row k holds the threshold of level k; copies of the last one do not change the result.
        missing = 2**self._bits - 1 - self._num
        rows = [thresholds[:1], thresholds, thresholds[-1:].expand(missing, -1)]
        self._table = torch.cat(rows)  # [2**bits, C]
        self._channels = self._table.shape[1]
        self._shape = (1, -1, *[1] * (len(shape) - 1)) if self._channels > 1 else ()

    def count(self, membrane: str, reaches: Callable[[str, str], str]) -> str:
        """Return the number of thresholds that the membrane has reached, as int32.

        Args:
            membrane: name of the membrane.
            reaches: writes the comparison of the membrane with a threshold.
        """
        graph, level = self._graph, None
        for bit in reversed(range(self._bits)):
            reached = graph.cast(reaches(membrane, self._threshold(level, 2**bit)), np.int32)
            gained = graph.op("Mul", reached, graph.constant(2**bit, np.int32))
            level = gained if level is None else graph.op("Add", level, gained)
        assert level is not None
        if self._num == 2**self._bits - 1:
            return level
        return graph.op("Min", level, graph.constant(self._num, np.int32))

    def _threshold(self, level: str | None, more: int) -> str:
        """Return the threshold of the level found so far plus ``more``, per position."""
        graph = self._graph
        if level is None:
            return graph.constant(self._table[more].reshape(self._shape), self._dtype)
        flat = graph.constant(self._table.flatten(), self._dtype)
        row = level
        if self._channels > 1:
            row = graph.op("Mul", level, graph.constant(self._channels, np.int32))
        offset = more * self._channels + torch.arange(self._channels)
        index = graph.op("Add", row, graph.constant(offset.reshape(self._shape), np.int32))
        return graph.op("Gather", flat, index, axis=0)
