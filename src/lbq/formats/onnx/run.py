"""Run exported files with ONNX Runtime or OpenVINO."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from lbq.errors import FormatError, MissingExtraError, ParameterError, ShapeError, install_command
from lbq.formats.onnx.graph import OPENVINO_CONFIG

Engine = Literal["onnxruntime", "openvino"]
_ANSWER = "logits"


def answer_name(index: int) -> str:
    """Return the name of a graph's output: ``logits``, ``logits_2``, and so on."""
    return _ANSWER if index == 0 else f"{_ANSWER}_{index + 1}"


def is_answer(name: str) -> bool:
    """Return whether this is the name of an output, not the path of a neuron."""
    return re.fullmatch(rf"{_ANSWER}(_\d+)?", name) is not None


class OnnxRunner:
    """An ONNX file loaded into an engine.

    Args:
        path: a file that :func:`lbq.formats.onnx.export.export_onnx` wrote.
        engine: "onnxruntime" or "openvino".
        threads: number of threads per inference; None leaves it to the engine.
    """

    def __init__(
        self, path: str | Path, *, engine: Engine = "onnxruntime", threads: int | None = None
    ) -> None:
        if engine not in _LOADERS:
            raise ParameterError(f"engine must be one of {', '.join(_LOADERS)}, got {engine!r}")
        if not Path(path).is_file():
            raise FormatError(f"there is no file {path}; write it with lbq.formats.export_onnx")
        try:
            self._run, self._dtype, self._shape = _LOADERS[engine](str(path), threads)
        except MissingExtraError:
            raise
        except Exception as error:  # engines raise many types for damaged files
            raise FormatError(f"{engine} cannot load {path}: {error}") from error

    def __call__(self, inputs: np.ndarray) -> Any:
        """Return the logits; a tuple for several outputs."""
        answers = tuple(value for name, value in self.run_all(inputs).items() if is_answer(name))
        return answers[0] if len(answers) == 1 else answers

    def run_all(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return every output by name: the logits, and the levels if the file outputs them."""
        inputs = np.asarray(inputs)
        expected = [size if isinstance(size, int) else None for size in self._shape]
        fits = len(expected) == inputs.ndim and all(
            size in (None, got) for size, got in zip(expected, inputs.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("B" if size is None else str(size) for size in expected)
            raise ShapeError(f"this file takes [{wanted}], got {list(inputs.shape)}")
        if inputs.size == 0:  # ONNX Runtime cannot split an empty axis into timesteps
            raise ShapeError(f"this file takes one sample or more, got {list(inputs.shape)}")
        if inputs.dtype != self._dtype:
            hint = "raw pixels or counts" if self._dtype == np.uint8 else "normalised inputs"
            raise ShapeError(f"this file takes {hint} as {self._dtype}, got {inputs.dtype}")
        return self._run(np.ascontiguousarray(inputs))


def run_onnx(path: str | Path, inputs: np.ndarray, *, engine: Engine = "onnxruntime") -> Any:
    """Run an exported file once and return its logits; a tuple for several outputs.

    To run a file several times, keep an :class:`OnnxRunner`.
    """
    return OnnxRunner(path, engine=engine)(inputs)


_Run = Callable[[np.ndarray], dict[str, np.ndarray]]
_Loaded = tuple[_Run, np.dtype[Any], Sequence[int | str | None]]


def _load_onnxruntime(path: str, threads: int | None) -> _Loaded:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"ONNX Runtime is not installed: {install_command('onnx')}"
        ) from error
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]

    def run(inputs: np.ndarray) -> dict[str, np.ndarray]:
        found = cast(list[Any], session.run(names, {entry.name: inputs}))
        return dict(zip(names, found, strict=True))

    dtype = np.dtype({"tensor(uint8)": np.uint8}.get(entry.type, np.float32))
    return run, dtype, list(entry.shape)


def _load_openvino(path: str, threads: int | None) -> _Loaded:
    try:
        import openvino  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"OpenVINO is not installed: {install_command('openvino')}"
        ) from error
    settings: dict[str, Any] = dict(OPENVINO_CONFIG)
    if threads is not None:
        settings["INFERENCE_NUM_THREADS"] = threads
    model = openvino.Core().compile_model(path, "CPU", settings)
    (entry,) = model.inputs
    # OpenVINO also lists an output's internal name, and only internal names contain a slash.
    names = [next(n for n in output.get_names() if "/" not in n) for output in model.outputs]

    def run(inputs: np.ndarray) -> dict[str, np.ndarray]:
        found = model(inputs)
        return {name: np.array(found[k]) for k, name in enumerate(names)}

    shape = [None if size.is_dynamic else size.get_length() for size in entry.get_partial_shape()]
    return run, np.dtype(entry.get_element_type().to_dtype()), shape


_LOADERS: dict[Engine, Callable[[str, int | None], _Loaded]] = {
    "onnxruntime": _load_onnxruntime,
    "openvino": _load_openvino,
}
