"""``stream``: run a network one timestep at a time."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from lbq.carries import Carries
from lbq.errors import ParameterError, ShapeError, TimeError
from lbq.graph.graph import LoweredNetwork, check_shape
from lbq.neurons.watch import named_neurons, running_uncompiled
from lbq.runtime import native_engine
from lbq.runtime.run import choose_backend
from lbq.time import FramesIn, RepeatOverTime, check_timesteps


def stream(model: nn.Module | LoweredNetwork, *, timesteps: int | None = None) -> "Stream":
    """Run a network on frames as they arrive; call the result with one frame after the other.

    A frame is one timestep, ``[B, ...]``; a network that repeats a static input takes that input at
    every timestep. Every neuron continues from its carry. The output is that of a sequence of one
    timestep: ``[B, classes]``, or ``[1, B, classes]`` without a mean over time; a tuple for several
    outputs. The output for the whole sequence is the mean of these outputs, or their sum for an
    integer network. Gradients are off. Start a new stream for a new sequence. Many streams can
    share a network, also in several threads.

    Integer networks return the same integers as :func:`lbq.run_network` on the whole sequence, and
    run in the native engine where it supports them. In floating point, layers may round differently
    for B rows than for the T * B rows of a whole sequence, mostly if B is small, so a level next to
    a threshold may change. With ``timesteps`` the results are bit for bit those of the whole
    sequence, because the batch is repeated T times and every layer has the same size as there. This
    takes T times the work (docs/decisions/0053). Blocks with ``fused=True`` in channels last are an
    exception: their kernels start from rest, so a stream runs them unfused.

    Train mode and neurons that mix all timesteps (LMHT) raise an error. Other modules that mix
    timesteps, such as an LSTM over time, cannot be detected. Compare with the whole sequence once,
    as in the example.

    Args:
        model: a network with neurons in eval mode, or a lowered network.
        timesteps: number of timesteps of the sequence (T), for results bit for bit those of the
            whole sequence; None for the least work and any number of timesteps.

    Example:
        >>> model = lbq.resnet20(10, timesteps=4, form="events", width=1 / 16).eval()
        >>> frames = torch.rand(4, 1, 2, 16, 16)  # [T, B, C, H, W]
        >>> stream = lbq.stream(model, timesteps=4)
        >>> outputs = [stream(frame) for frame in frames]  # each [B, classes]
        >>> torch.equal(torch.stack(outputs).mean(0), model(frames))
        True
    """
    if timesteps is not None:
        _check_length(model, check_timesteps(timesteps))
    if not isinstance(model, LoweredNetwork):
        is_static = any(isinstance(module, RepeatOverTime) for module in model.modules())
        return Stream(model, not is_static, copies=timesteps or 1, max_timesteps=timesteps)
    if model.is_integer:  # exact for any number of rows; the proof covers only its timesteps
        return LoweredStream(model, copies=1, max_timesteps=model.timesteps)
    return LoweredStream(model, copies=timesteps or 1, max_timesteps=timesteps)


class Stream:
    """The carries of a network's neurons between two timesteps, from :func:`lbq.stream`.

    Args:
        model: the network; it is not changed.
        takes_frames: whether it takes ``[T, B, ...]`` instead of static inputs.
        copies: how often the batch is repeated.
        max_timesteps: length of the sequence, if it is limited.
    """

    def __init__(
        self,
        model: nn.Module | LoweredNetwork,
        takes_frames: bool,
        *,
        copies: int,
        max_timesteps: int | None,
    ) -> None:
        is_lowered = isinstance(model, LoweredNetwork)
        named = model.neurons() if is_lowered else named_neurons(model)
        neurons = {neuron: path for path, neuron in named}
        if not neurons:
            raise ParameterError(
                f"{type(model).__name__} has no neuron of lbq, so no state passes from one "
                f"timestep to the next; call it with every frame, as a sequence of one timestep"
            )
        for neuron, path in neurons.items():
            if neuron.needs_whole_sequence:
                raise TimeError(
                    f"the neuron {path or 'itself'} ({type(neuron).__name__}) mixes the currents "
                    f"of all timesteps, so it needs the whole sequence at once; use BurstLIF"
                )
        self._model, self._takes_frames, self._copies = model, takes_frames, copies
        self._carries = Carries(neurons, copies=copies)
        self._timestep, self._max_timesteps = 0, max_timesteps
        self._shape: torch.Size | None = None

    @torch.no_grad()
    def __call__(self, frame: Tensor) -> Any:
        """Run the next timestep; return its output."""
        if self._shape is not None and frame.shape != self._shape:
            raise ShapeError(
                f"this stream began with frames of shape {list(self._shape)}, got "
                f"{list(frame.shape)}; start a new lbq.stream for other samples"
            )
        if self._timestep == self._max_timesteps:
            raise TimeError(
                f"this stream ends after {self._max_timesteps} timesteps (the argument, or the "
                f"limit of an integer network); start a new lbq.stream for the next sequence"
            )
        output = self._run(frame)
        self._shape = frame.shape
        self._timestep += 1
        return output

    def _run(self, frame: Tensor) -> Any:
        assert isinstance(self._model, nn.Module)
        _check_independent_of_batch(self._model)
        return self._run_model(frame)

    def _run_model(self, frame: Tensor) -> Any:
        with running_uncompiled(), self._carries.timestep():
            output = self._model(self._carries.repeat(frame) if self._takes_frames else frame)
        return output if self._copies == 1 else self._own_rows(output, batch=len(frame))

    def _own_rows(self, output: Any, *, batch: int) -> Any:
        """Return the rows of the copy that belongs to this timestep."""
        if isinstance(output, tuple):
            outputs = cast(tuple[Any, ...], output)
            return tuple(self._own_rows(one, batch=batch) for one in outputs)
        shape = list(output.shape) if isinstance(output, Tensor) else []
        rows = self._copies * batch
        if rows not in shape[:2]:
            raise ShapeError(
                f"timesteps={self._copies} needs an output whose first or second axis is the "
                f"batch of {rows} rows, got {shape or type(output).__name__}; stream this "
                f"network without timesteps"
            )
        return output.narrow(shape.index(rows), self._timestep * batch, batch)


class LoweredStream(Stream):
    """A stream of a lowered network, in the native engine where it supports the network.

    Args:
        network: the network; it is not changed.
        copies: how often the batch is repeated.
        max_timesteps: length of the sequence, if it is limited.
    """

    def __init__(self, network: LoweredNetwork, *, copies: int, max_timesteps: int | None) -> None:
        super().__init__(network, network.takes_frames, copies=copies, max_timesteps=max_timesteps)
        self._network = network
        is_native = choose_backend(network) == "native"
        self._engine = native_engine.engine_of(network) if is_native else None
        self._state: native_engine.EngineState | None = None

    def _run(self, frame: Tensor) -> Any:
        check_shape(frame, self._network.input_shape, takes_frames=False)
        self._network.check_values(frame)
        if self._engine is None:
            return self._run_model(frame)
        if self._state is None:
            self._state = native_engine.EngineState(self._engine, len(frame))
        inputs = frame.unsqueeze(0) if self._takes_frames else frame
        return self._engine.run(inputs, carries=self._state, timesteps=1)


def _check_length(model: nn.Module | LoweredNetwork, timesteps: int) -> None:
    """Raise if the network takes sequences of another length."""
    modules = [("", model)] if isinstance(model, LoweredNetwork) else model.named_modules()
    for path, module in modules:
        has_length = isinstance(module, FramesIn | RepeatOverTime | LoweredNetwork)
        if has_length and module.timesteps != timesteps:
            raise TimeError(
                f"{path or type(model).__name__} is built for {module.timesteps} timesteps, got "
                f"timesteps={timesteps}; pass timesteps={module.timesteps}, or omit it"
            )


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _check_independent_of_batch(model: nn.Module) -> None:
    """Raise if a module uses statistics over all timesteps of a call."""
    for path, module in model.named_modules():
        if module.training:
            raise ParameterError(
                f"{path or type(model).__name__} is in train mode, in which batch norms average "
                f"over all timesteps of a call; call model.eval() before streaming"
            )
        if isinstance(module, _BATCH_NORMS) and module.running_mean is None:
            raise ParameterError(
                f"{path or type(model).__name__} has no running statistics, so it averages over "
                f"all timesteps of a call; build it with track_running_stats=True"
            )
