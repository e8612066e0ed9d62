"""Binding of the native engine: integer networks in C++, event-driven where few levels are active.

The structs are those of ``native/engine/c_api.h``; ``docs/engine.md`` describes the engine.
"""

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import util
from typing import Any, Literal
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch
from torch import Tensor

from lbq.errors import ImplementationError, LoweringError, ParameterError, TimeError
from lbq.graph.graph import (
    INPUT,
    GraphBuilder,
    LoweredNetwork,
    Node,
    check_bytes,
    check_shape,
    prove,
)
from lbq.graph.operators import Bound, IntegerNeuron, Readout, Synapse
from lbq.graph.operators.operator_base import MAX_RANK
from lbq.kernels import native_scan as kernels
from lbq.types import Watch

_MOST_NUMBERS, _MOST_AXES = 8, 4
"""Largest number of integers in a setting, and of axes of a tensor."""


class _Setting(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("word", ctypes.c_char_p),
        ("count", ctypes.c_int64),
        ("numbers", ctypes.c_int64 * _MOST_NUMBERS),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("num_dims", ctypes.c_int64),
        ("shape", ctypes.c_int64 * _MOST_AXES),
    )


class _Node(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("kind", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in ("num_inputs", "num_settings", "num_tensors")),
        ("inputs", ctypes.POINTER(ctypes.c_int32)),
        ("settings", ctypes.POINTER(_Setting)),
        ("tensors", ctypes.POINTER(_Tensor)),
        *((name, ctypes.c_int64) for name in ("low", "high", "bits")),
    )


class Description(ctypes.Structure):
    """The C struct of a network; :class:`NetworkDescription` owns the memory it points to."""

    _fields_ = (
        ("timesteps", ctypes.c_int64),
        ("takes_frames", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("input", ctypes.c_int64 * MAX_RANK),
        ("num_nodes", ctypes.c_int64),
        ("nodes", ctypes.POINTER(_Node)),
    )


class NetworkDescription:
    """The C structs of an integer network, and the memory that they point to.

    As in a bundle, settings and tensors have names.

    Args:
        network: from :func:`lbq.to_fixed_point`. Raises if it could overflow.
    """

    def __init__(self, network: LoweredNetwork) -> None:
        if not network.is_integer:
            raise LoweringError(
                "the native engine runs integer networks, but this one is real-valued; convert it "
                "with lbq.to_fixed_point"
            )
        self._alive: list[Any] = []
        self._index = {INPUT: -1} | {path: i for i, path in enumerate(network.operators)}
        self.values, bounds = network.values(), prove(network)
        nodes = [self._describe(node, bounds.get(node.path)) for node in network.nodes]
        shape = network.input_shape
        self.struct = Description(
            network.timesteps,
            network.takes_frames,
            len(shape),
            (ctypes.c_int64 * MAX_RANK)(*shape, *[1] * (MAX_RANK - len(shape))),
            len(nodes),
            self._array(_Node, nodes),
        )

    def _describe(self, node: Node, bound: Bound | None) -> _Node:
        operator, inputs = node.operator, [self._index[name] for name in node.inputs]
        settings = [_setting(name, getattr(operator, name)) for name in operator.settings()]
        tensors = [(name, getattr(operator, name)) for name in operator.tensors()]
        given = [self._tensor(name, tensor) for name, tensor in tensors if tensor is not None]
        made = _Node(
            path=node.path.encode(),
            kind=operator.op.encode(),
            num_inputs=len(inputs),
            num_settings=len(settings),
            num_tensors=len(given),
            inputs=self._array(ctypes.c_int32, inputs),
            settings=self._array(_Setting, settings),
            tensors=self._array(_Tensor, given),
        )
        if bound is not None:
            made.low, made.high, made.bits = bound.low, bound.high, bound.bits
        return made

    def _tensor(self, name: str, tensor: Tensor) -> _Tensor:
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        self._alive.append(array)
        shape = (ctypes.c_int64 * _MOST_AXES)(*array.shape)
        return _Tensor(name.encode(), array.ctypes.data, array.itemsize, array.ndim, shape)

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        array = (kind * len(items))(*items)
        self._alive.append(array)
        return array


def _setting(name: str, value: int | str | tuple[int, ...] | None) -> _Setting:
    made = _Setting(name=name.encode())
    if isinstance(value, str):
        made.word = value.encode()
    elif value is not None:
        numbers = value if isinstance(value, tuple) else (int(value),)
        made.count = len(numbers)
        made.numbers[: len(numbers)] = numbers
    return made


Choice = Literal["measured", "events", "dense"]
CHOICES: tuple[Choice, ...] = ("measured", "events", "dense")
MAX_TIMED_IMAGES = 4
"""Largest batch whose stages can be timed."""


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """Time of one stage of the engine."""

    path: str
    seconds: float
    pair_density: float | None
    """Share of channel pairs with a nonzero level, in a sample of rows; None without products."""
    is_dense: bool


class _Record(ctypes.Structure):
    _fields_ = (
        ("node", ctypes.c_int64),
        ("is_dense", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("pair_density", ctypes.c_double),
    )


class EngineState:
    """The carries of an engine's neurons between parts of a stream; starts at rest.

    A stream has at most the network's timesteps, because the overflow proof covers no more.

    Args:
        engine: the engine.
        batch: number of samples.
    """

    def __init__(self, engine: "NativeEngine", batch: int) -> None:
        self.engine, self.batch, self.timesteps_left = engine, batch, engine.timesteps
        self.handle = _checked(_library().lbq_engine_state_new(engine.handle, batch))
        finalize(self, _library().lbq_engine_state_free, self.handle)


class NativeEngine:
    """An integer network packed for one instruction set; any number of threads may run it.

    Args:
        network: from :func:`lbq.to_fixed_point`. Its tensors are copied.
        choice: "measured" chooses events or dense products per layer by the share of active
            levels; "events" and "dense" force one of them.
        isa: instruction set; None for the best one that ``LBQ_ISA`` allows.
    """

    def __init__(
        self, network: LoweredNetwork, *, choice: Choice = "measured", isa: str | None = None
    ) -> None:
        if choice not in CHOICES:
            raise ParameterError(f"choice must be one of {', '.join(CHOICES)}, got {choice!r}")
        self._description = description = NetworkDescription(network)
        self._paths = list(network.operators)
        self._neurons = {path: self._paths.index(path) for path, _ in network.neurons()}
        self.timesteps, self.takes_frames = network.timesteps, network.takes_frames
        self._input_shape = network.input_shape
        readouts = [node for node in network.operators.values() if isinstance(node, Readout)]
        self.gives_sequence = not readouts or readouts[-1].over_time != "sum"
        self._outputs = [description.values[path].shape for path in network.outputs]
        name = None if isa is None else isa.encode()
        self.handle = _checked(
            _library().lbq_engine_new(ctypes.byref(description.struct), name, CHOICES.index(choice))
        )
        finalize(self, _library().lbq_engine_free, self.handle)

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return _library().lbq_engine_isa(self.handle).decode()

    def run(
        self,
        inputs: Tensor,
        *,
        carries: EngineState | None = None,
        timesteps: int | None = None,
        threads: int | None = None,
        watch: Watch | None = None,
    ) -> Any:
        """Return the integer logits of uint8 inputs, as :func:`lbq.run_network` does.

        A network with several outputs returns a tuple.

        Args:
            inputs: ``[B, ...]``, or ``[T, B, ...]`` if the network takes frames.
            carries: state of the neurons, updated in place; None starts at rest.
            timesteps: length of this part of a stream; None for the number of frames, or for all
                timesteps of the network.
            threads: number of threads; None for torch's number.
            watch: called with every layer, timestep and level.
        """
        return self._run(inputs, carries, timesteps, threads, watch, None)

    def time_stages(self, inputs: Tensor) -> list[StageTime]:
        """Run at most four images on one thread and return the time of every stage."""
        records = (_Record * len(self._paths))()
        self._run(inputs, None, None, 1, None, records)
        return [
            StageTime(
                path=self._paths[record.node],
                seconds=record.seconds,
                pair_density=record.pair_density if record.pair_density >= 0 else None,
                is_dense=bool(record.is_dense),
            )
            for record in records
            if record.seconds > 0
        ]

    def _run(
        self,
        inputs: Tensor,
        carries: EngineState | None,
        timesteps: int | None,
        threads: int | None,
        watch: Watch | None,
        records: Any,
    ) -> Any:
        check_shape(inputs, self._input_shape, takes_frames=self.takes_frames)
        check_bytes(inputs)
        inputs = inputs.cpu().contiguous()
        batch = inputs.shape[1] if self.takes_frames else inputs.shape[0]
        timesteps = self._timesteps(inputs, timesteps, carries)
        if records is not None and batch > MAX_TIMED_IMAGES:
            raise ParameterError(
                f"stages are timed for at most {MAX_TIMED_IMAGES} images, got {batch}"
            )
        if carries is not None and (carries.engine is not self or carries.batch != batch):
            raise ParameterError(
                f"this state is for {carries.batch} samples, or for another engine; make a new one "
                f"with EngineState(engine, {batch})"
            )
        values = self._description.values
        leading = (timesteps, batch) if self.gives_sequence else (batch,)
        shapes = [(*leading, *shape) for shape in self._outputs]
        sizes = [math.prod(shape) for shape in shapes]
        answers = torch.empty(sum(sizes), dtype=torch.int32)
        seen: dict[str, Tensor] = {}
        pointers = None
        if watch is not None:
            pointers = (ctypes.c_void_p * len(self._paths))()
            for path, number in self._neurons.items():
                shape = (timesteps, batch, *values[path].shape)
                seen[path] = torch.empty(shape, dtype=torch.uint8)
                pointers[number] = seen[path].data_ptr()
        failed = _library().lbq_engine_run(
            self.handle,
            inputs.data_ptr(),
            batch,
            timesteps,
            threads or torch.get_num_threads(),
            None if carries is None else carries.handle,
            pointers,
            records,
            0 if records is None else len(records),
            answers.data_ptr(),
        )
        if failed:
            raise ImplementationError(_library().lbq_engine_error().decode())
        if carries is not None:
            carries.timesteps_left -= timesteps
        if watch is not None:
            for path, levels in seen.items():
                for t, level in enumerate(levels.unbind(0)):
                    watch(path, t, level)
        parts = zip(answers.split(sizes), shapes, strict=True)
        outputs = tuple(part.reshape(shape) for part, shape in parts)
        return outputs[0] if len(outputs) == 1 else outputs

    def _timesteps(self, inputs: Tensor, requested: int | None, carries: EngineState | None) -> int:
        """Return the number of timesteps; raise if the overflow proof covers fewer."""
        whole = len(inputs) if self.takes_frames else self.timesteps
        timesteps = whole if requested is None else requested
        if timesteps < 1:
            raise TimeError(f"at least one timestep is needed, got {timesteps}")
        if self.takes_frames and timesteps != len(inputs):
            raise TimeError(f"got {len(inputs)} frames for {timesteps} timesteps")
        left = self.timesteps if carries is None else carries.timesteps_left
        if timesteps > left:
            raise TimeError(
                f"{timesteps} timesteps were requested, but {left} are left of the "
                f"{self.timesteps} that the overflow proof covers; start a new EngineState"
            )
        return timesteps


_Known = NativeEngine | ImplementationError | LoweringError
_engines: WeakKeyDictionary[LoweredNetwork, _Known] = WeakKeyDictionary()


def engine_of(network: LoweredNetwork) -> NativeEngine:
    """Return the network's engine, cached per network; raise if it cannot be built."""
    known = _engines.get(network)
    if known is None:
        try:
            known = NativeEngine(network)
        except (ImplementationError, LoweringError) as error:
            known = error.with_traceback(None)
        _engines[network] = known
    if isinstance(known, Exception):
        raise known
    return known


@cache
def _library() -> Any:
    """Load the C API of the engine; raise if the library is missing."""
    spec, why = util.find_spec("lbq._native"), kernels.load_error()
    if why is not None or spec is None or spec.origin is None:
        raise ImplementationError(
            f'backend "native" needs lbq\'s native library, which {why}; {kernels.HOW_TO_BUILD}, '
            f'or use backend "dense", which computes the same integers'
        )
    library = ctypes.CDLL(spec.origin)
    pointer, number, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    library.lbq_engine_new.argtypes = [ctypes.POINTER(Description), text, number]
    library.lbq_engine_new.restype = pointer
    library.lbq_engine_free.argtypes = [pointer]
    library.lbq_engine_free.restype = None
    library.lbq_engine_isa.argtypes = [pointer]
    library.lbq_engine_isa.restype = text
    library.lbq_engine_state_new.argtypes = [pointer, number]
    library.lbq_engine_state_new.restype = pointer
    library.lbq_engine_state_free.argtypes = [pointer]
    library.lbq_engine_state_free.restype = None
    library.lbq_engine_run.argtypes = [
        *(pointer, pointer, number, number, number),
        *(pointer, pointer, pointer, number, pointer),
    ]
    library.lbq_engine_run.restype = number
    library.lbq_engine_error.argtypes = []
    library.lbq_engine_error.restype = text
    return library


def _checked(handle: int | None) -> int:
    """Return a handle; raise the library's message if it is null."""
    if handle is None:
        raise ImplementationError(_library().lbq_engine_error().decode())
    return handle


IDEAL_CHANNELS, IDEAL_SIDE = 256, 14
"""Channels and side of a layer that fits the caches and fills every vector."""


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """Time of one stage of the engine: a neuron and all sums before it."""

    path: str
    seconds: float
    """Time of the fastest run."""
    kernel: str
    """ "events", "dense", or "plain" where no level meets a weight."""
    pair_density: float | None
    """Share of channel pairs with a nonzero level, in a sample of rows."""
    products: int
    """Number of multiplications by a dense kernel."""

    @property
    def rate(self) -> float:
        """``products`` per second."""
        return self.products / self.seconds


@dataclass(frozen=True, kw_only=True)
class NetworkTime:
    """Times of all layers, and the limit of this machine."""

    isa: str
    limit: float
    """Products per second of the engine's dense kernel on an ideal layer."""
    layers: tuple[LayerTime, ...]

    def share(self, layer: LayerTime) -> float:
        """Return a layer's rate relative to the limit; above 1 it beats any dense kernel."""
        return layer.rate / self.limit


def time_layers(
    network: LoweredNetwork,
    inputs: Tensor,
    *,
    rounds: int = 20,
    choice: Choice = "measured",
    isa: str | None = None,
) -> NetworkTime:
    """Run at most four images repeatedly on one thread; return each layer's fastest time.

    Args:
        network: from :func:`lbq.to_fixed_point`.
        inputs: uint8; the share of active levels depends on them.
        rounds: number of runs.
        choice: as for :class:`NativeEngine`.
        isa: as for :class:`NativeEngine`.
    """
    network.check_input(inputs)
    engine = NativeEngine(network, choice=choice, isa=isa)
    runs = [engine.time_stages(inputs) for _ in range(1 + rounds)][1:]  # the first allocates
    batch = inputs.shape[1] if network.takes_frames else len(inputs)
    products = products_of_stages(network, {stage.path for stage in runs[0]})
    layers = tuple(
        LayerTime(
            path=last.path,
            seconds=min(stage.seconds for stage in (*others, last)),
            kernel="plain" if last.pair_density is None else ("events", "dense")[last.is_dense],
            pair_density=last.pair_density,
            products=batch * products[last.path],
        )
        for *others, last in zip(*runs, strict=True)
    )
    return NetworkTime(isa=engine.isa, limit=measure_limit(engine.isa, rounds), layers=layers)


def products_of_stages(network: LoweredNetwork, stages: Iterable[str]) -> dict[str, int]:
    """Count the multiplications of a dense kernel in each of these stages, for one sample.

    A synapse that is not a stage itself belongs to the stage of its only reader.
    """
    reader = {name: node.path for node in network.nodes for name in node.inputs}
    counts = dict.fromkeys(stages, 0)
    for path, node in network.operators.items():
        if not isinstance(node, Synapse):
            continue
        value = network.values()[path]
        instants = network.timesteps if value.has_time else 1
        stage = path
        while stage not in counts:
            stage = reader[stage]
        positions = value.size // value.shape[0]
        counts[stage] += instants * positions * node.weight.numel()
    return counts


def measure_limit(isa: str, rounds: int = 20) -> float:
    """Return the products per second of the dense kernel on an ideal layer."""
    network = ideal_network()
    engine = NativeEngine(network, choice="dense", isa=isa)
    inputs = torch.ones(1, 1, 1, IDEAL_SIDE, IDEAL_SIDE, dtype=torch.uint8)
    times = [engine.time_stages(inputs)[-1] for _ in range(1 + rounds)]
    products = products_of_stages(network, ["neuron", "ideal"])["ideal"]
    return products / min(stage.seconds for stage in times)


def ideal_network() -> LoweredNetwork:
    """Build a network whose last layer is a 3x3 convolution of levels, all of them active."""
    builder = GraphBuilder(
        timesteps=1,
        input_shape=(1, IDEAL_SIDE, IDEAL_SIDE),
        takes_frames=True,
        logit_scale=1.0,
    )
    few = torch.ones(IDEAL_CHANNELS, 1, 1, 1, dtype=torch.int8)
    many = torch.ones(IDEAL_CHANNELS, IDEAL_CHANNELS, 3, 3, dtype=torch.int8)
    one = torch.ones(1, 1, dtype=torch.int32)
    neuron = IntegerNeuron(one, multiplier=0, shift=0, reset_amount=one[0], reset="event")
    builder.add("stem", Synapse(few, max_input=255, bits=8), "input")
    builder.add("neuron", neuron, "stem")
    builder.add("ideal", Synapse(many, max_input=1, padding=(1, 1), bits=8), "neuron")
    builder.add("readout", Readout("sum"), "ideal")
    return builder.finish()
