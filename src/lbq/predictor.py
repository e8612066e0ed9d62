"""``lbq.Predictor``: a bundle as a function of batches, for Ray Data and Spark."""

import math
from collections.abc import Mapping
from os import PathLike
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from lbq.errors import ParameterError, ShapeError
from lbq.formats.bundle import load_network
from lbq.runtime.native_engine import NativeEngine


class Predictor:
    """A bundle on the native engine that classifies batches and returns integer logits.

    A batch is a dictionary of numpy columns with one row per sample, as ``map_batches`` of Ray Data
    passes it. The result has the same rows. The columns ``class`` and ``logits`` (int32) replace
    the inputs; all other columns stay. ``class`` is the index of the largest logit, the first one
    in a tie, as in ``lbq-run``. With several outputs the columns are ``class_0``, ``logits_0`` and
    so on. For a network that returns a sequence they are ``[B, T, ...]``.

    Args:
        bundle: path of an integer network. Every worker reads it once.
        column: the column of inputs, uint8 ``[B, ...]``, or ``[B, T, ...]`` for a network of
            frames.
        threads: number of threads per call; 1 suits one worker per core.
        sha256: expected SHA-256 of the file; a different one raises an error.

    Example:
        >>> images = torch.randn(4, 3, 16, 16)
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), images)
        >>> pixels = lbq.Pixels(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
        >>> sha256 = lbq.save_network(lbq.to_fixed_point(net, pixels=pixels), "net.lbq")
        >>> predict = lbq.Predictor("net.lbq")
        >>> batch = torch.zeros(4, 3, 16, 16, dtype=torch.uint8).numpy()
        >>> answer = predict({"id": torch.arange(4).numpy(), "image": batch})
        >>> {name: values.shape for name, values in answer.items()}
        {'id': (4,), 'class': (4,), 'logits': (4, 10)}
    """

    def __init__(
        self,
        bundle: str | PathLike[str],
        *,
        column: str = "image",
        threads: int = 1,
        sha256: str | None = None,
    ) -> None:
        if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ParameterError(f"threads must be a whole number of at least 1, got {threads!r}")
        network = load_network(bundle, sha256=sha256)
        self.column, self.threads = column, threads
        self._engine = NativeEngine(network)
        self._takes_frames = network.takes_frames
        time = (network.timesteps,) if network.takes_frames else ()
        self._shape = (*time, *network.input_shape)
        numbers = [f"_{i}" for i in range(len(network.outputs))]
        self._suffixes = numbers if len(numbers) > 1 else [""]

    def __call__(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the columns of the batch with classes and logits in place of the inputs."""
        inputs = self._inputs(batch)
        made = [f"{name}{suffix}" for suffix in self._suffixes for name in ("class", "logits")]
        if taken := sorted(set(made) & set(batch)):
            raise ParameterError(
                f"the batch already has the columns {', '.join(taken)}, which the result would "
                f"replace; rename them"
            )
        if self._takes_frames:
            inputs = inputs.swapaxes(0, 1)
        pixels = torch.from_numpy(np.require(inputs, requirements=["C", "W"]))
        found = self._engine.run(pixels, threads=self.threads)
        answer = {name: values for name, values in batch.items() if name != self.column}
        outputs = found if isinstance(found, tuple) else (found,)
        for suffix, output in zip(self._suffixes, outputs, strict=True):
            logits = output.numpy()
            instant = 1
            if self._engine.gives_sequence:
                logits, instant = np.ascontiguousarray(logits.swapaxes(0, 1)), 2
            flat = (*logits.shape[:instant], math.prod(logits.shape[instant:]))
            answer[f"class{suffix}"] = logits.reshape(flat).argmax(-1)
            answer[f"logits{suffix}"] = logits
        return answer

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._engine.isa

    def __reduce__(self) -> NoReturn:
        raise ParameterError(
            "a Predictor cannot be sent to another process: its weights are packed for this "
            "processor; pass the class and the path of the bundle, and construct it in every "
            "worker (docs/how-to/label-images.md)"
        )

    def _inputs(self, batch: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """Return the column of inputs; raise unless it is uint8 of the network's shape."""
        if not isinstance(batch, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ParameterError(
                f"a batch is a dictionary of columns, got {type(batch).__name__}; pass "
                f"{{{self.column!r}: inputs}}"
            )
        if self.column not in batch:
            raise ParameterError(
                f"the batch has no column {self.column!r}, only {', '.join(map(repr, batch))}; "
                f"name the inputs with Predictor(..., column=...)"
            )
        given = batch[self.column]
        if nulls := int(np.ma.count_masked(given)) if np.ma.isMaskedArray(given) else 0:
            raise ShapeError(
                f"column {self.column!r} has {nulls} masked values of {np.size(given)}, but a "
                f"network needs all values; fill them, or drop their rows first"
            )
        try:
            inputs = np.asarray(given)
        except ValueError:  # lists of several lengths
            inputs = np.empty(len(given), dtype=object)
        if inputs.dtype != np.uint8 or inputs.shape[1:] != self._shape:
            expected = ", ".join(map(str, ("B", *self._shape)))
            raise ShapeError(
                f"column {self.column!r} must be uint8 [{expected}], got {inputs.dtype} "
                f"{list(inputs.shape)}; decode, resize and stack the samples before, channels "
                f"first and not normalised"
            )
        for name, values in batch.items():
            rows = _num_rows(values)
            if rows != len(inputs):
                raise ShapeError(
                    f"column {name!r} has {'no' if rows is None else rows} rows, and column "
                    f"{self.column!r} has {len(inputs)}; all columns of a batch have one row per "
                    f"sample"
                )
        return inputs


def _num_rows(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:  # a single number
        return None
