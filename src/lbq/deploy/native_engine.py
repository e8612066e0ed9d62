"""The native engine: an integer network in C++, event-driven where few levels are active.

``docs/engine.md`` says how it works and when it wins.
"""

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import util
from typing import Any, Literal
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor

from lbq.deploy.backends.description import BufferSnapshot, Description, NetworkDescription
from lbq.deploy.lowered_network import LoweredNetwork, check_bytes, check_shape
from lbq.errors import ImplementationError, LoweringError, ParameterError, TimeError
from lbq.kernels import native_scan as kernels
from lbq.types import Watch

Choice = Literal["measured", "events", "dense"]
CHOICES: tuple[Choice, ...] = ("measured", "events", "dense")
MAX_TIMED_IMAGES = 4
"""Images of one call whose steps are timed: more run in pieces."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """How one step of the engine went."""

    path: str
    seconds: float
    pair_density: float | None
    """Share of pairs of channels that were not both zero; None where nothing is multiplied."""
    is_dense: bool


class _Record(ctypes.Structure):
    _fields_ = (
        ("node", ctypes.c_int64),
        ("is_dense", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("pair_density", ctypes.c_double),
    )


class EngineState:
    """What the neurons of an engine carry from one piece of a stream to the next; made at rest.

    A stream has as many timesteps as the network: that is how far its sums are proven.

    Args:
        engine: whose neurons.
        batch: number of samples.
    """

    def __init__(self, engine: "NativeEngine", batch: int) -> None:
        self.engine, self.batch, self.timesteps_left = engine, batch, engine.timesteps
        self.handle = _checked(_library().lbq_engine_state_new(engine.handle, batch))
        finalize(self, _library().lbq_engine_state_free, self.handle)


class NativeEngine:
    """An integer network packed for one instruction set; any number of threads may run it.

    Args:
        network: what :func:`lbq.to_fixed_point` returned. Its numbers are copied.
        choice: "measured" takes events or dense products by the share of active levels, layer by
            layer; the others force one.
        isa: instruction set; None for the best one that ``LBQ_ISA`` allows.
    """

    def __init__(
        self, network: LoweredNetwork, *, choice: Choice = "measured", isa: str | None = None
    ) -> None:
        if choice not in CHOICES:
            raise ParameterError(f"choice must be one of {', '.join(CHOICES)}, got {choice!r}")
        self._described = described = NetworkDescription(network)
        self._paths = [place.path for place in network.plan]
        self._neurons = {path: self._paths.index(path) for path, _ in network.neurons()}
        self.timesteps, self.takes_frames = network.timesteps, network.takes_frames
        self._input_shape = network.input_shape
        last = network.get_submodule(self._paths[-1])
        self._sums_over_time = getattr(last, "over_time", "none") == "sum"
        name = None if isa is None else isa.encode()
        self.handle = _checked(
            _library().lbq_engine_new(ctypes.byref(described.struct), name, CHOICES.index(choice)),
            self._paths,
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
    ) -> Tensor:
        """Answer uint8 inputs with integers, as ``lbq.run`` does.

        Args:
            inputs: ``[B, ...]``, or ``[T, B, ...]`` if the network takes frames.
            carries: where the neurons are, in and out; None for rest.
            timesteps: length of this piece of a stream; None for the network's, or the frames'.
            threads: None for torch's number.
            watch: called with every layer, timestep and level.
        """
        return self._run(inputs, carries, timesteps, threads, watch, None)

    def time_steps(self, inputs: Tensor) -> list[StepTime]:
        """Run at most four images on one thread and return how long every step took."""
        records = (_Record * len(self._paths))()
        self._run(inputs, None, None, 1, None, records)
        return [
            StepTime(
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
    ) -> Tensor:
        check_shape(inputs, self._input_shape, takes_frames=self.takes_frames)
        check_bytes(inputs)
        inputs = inputs.cpu().contiguous()
        batch = inputs.shape[1] if self.takes_frames else inputs.shape[0]
        timesteps = self._timesteps(inputs, timesteps, carries)
        if records is not None and batch > MAX_TIMED_IMAGES:
            raise ParameterError(
                f"steps are timed for at most {MAX_TIMED_IMAGES} images, got {batch}"
            )
        if carries is not None and (carries.engine is not self or carries.batch != batch):
            raise ParameterError(
                f"these carries are of {carries.batch} samples and maybe of another engine; "
                f"make new ones for {batch} with EngineState(engine, {batch})"
            )
        shape = (batch, *self._described.torch_shape(self._paths[-1]))
        answers = torch.empty(
            shape if self._sums_over_time else (timesteps, *shape), dtype=torch.int32
        )
        seen: dict[str, Tensor] = {}
        pointers = None
        if watch is not None:
            pointers = (ctypes.c_void_p * len(self._paths))()
            for path, number in self._neurons.items():
                shape = (timesteps, batch, *self._described.torch_shape(path))
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
        return answers

    def _timesteps(self, inputs: Tensor, asked: int | None, carries: EngineState | None) -> int:
        """Return how many timesteps this piece has; more than are proven are refused."""
        whole = len(inputs) if self.takes_frames else self.timesteps
        timesteps = whole if asked is None else asked
        if timesteps < 1:
            raise TimeError(f"at least one timestep is needed, got {timesteps}")
        if self.takes_frames and timesteps != len(inputs):
            raise TimeError(f"{len(inputs)} frames are given for {timesteps} timesteps")
        left = self.timesteps if carries is None else carries.timesteps_left
        if timesteps > left:
            raise TimeError(
                f"{timesteps} timesteps are asked for and {left} are left of the {self.timesteps} "
                f"that the network is proven for; begin again with new EngineState"
            )
        return timesteps


_Known = tuple[BufferSnapshot, NativeEngine | ImplementationError | LoweringError]
_engines: WeakKeyDictionary[LoweredNetwork, _Known] = WeakKeyDictionary()


def run(network: LoweredNetwork, inputs: Tensor, watch: Watch | None = None) -> Tensor:
    """Run on the native engine."""
    return engine_of(network).run(inputs, watch=watch)


def engine_of(network: LoweredNetwork) -> NativeEngine:
    """Return the network's engine, or raise why there is none; kept while its numbers stay."""
    known = _engines.get(network)
    if known is None or not known[0].matches(network):
        try:
            made = NativeEngine(network)
        except (ImplementationError, LoweringError) as error:
            made = error.with_traceback(None)
        known = (BufferSnapshot.of(network), made)
        _engines[network] = known
    if isinstance(known[1], Exception):
        raise known[1]
    return known[1]


@cache
def _library() -> Any:
    """Load the engine's door, or say what is missing."""
    spec, why = util.find_spec("lbq._native"), kernels.load_error()
    if why is not None or spec is None or spec.origin is None:
        raise ImplementationError(
            f'backend "native" needs lbq\'s native library, which {why}; build it in an '
            "environment with torch and a C++ compiler: pip install --no-build-isolation . -- or "
            'take backend "dense", which gives the same bits'
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


def _checked(handle: int | None, paths: Sequence[str] = ()) -> int:
    """Return a handle that the library gave; where it gave none, raise its message with paths."""
    if handle is None:
        message = _library().lbq_engine_error().decode()
        for number in sorted({int(number) for number in re.findall(r"node (\d+)", message)}):
            if number < len(paths):
                message = re.sub(rf"node {number}\b", f"node {number} ({paths[number]})", message)
        raise ImplementationError(message)
    return handle
