"""ReLU networks in int8 on ONNX Runtime and OpenVINO, to compare burst networks with.

Both engines are extras.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import lbq
from lbq.time import ImagesIn


def without_time(ann: nn.Module) -> nn.Module:
    """Remove the axis of time: a dense engine would reshape for it at every layer."""
    images = torch.randn(2, 3, 32, 32)
    expected = ann(images)
    for path, module in list(ann.named_modules()):
        if isinstance(module, lbq.OverTime):
            ann.set_submodule(path, nn.Sequential(*module))
        elif isinstance(module, lbq.RepeatOverTime | lbq.MeanOverTime | ImagesIn):
            ann.set_submodule(path, nn.Identity())
    torch.testing.assert_close(ann(images), expected)
    return ann


def int8_onnx(model: nn.Module, images: Tensor) -> bytes:
    """Return the network as an ONNX model of any batch that ONNX Runtime's tool quantised."""
    from onnxruntime.quantization import (  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        CalibrationDataReader,
        QuantFormat,
        quantize_static,
    )
    from onnxruntime.quantization.preprocess import (  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
        quant_pre_process,
    )

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = list(images.split(64))

        def get_next(self) -> dict[str, Any] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"images": self.left.pop().numpy()} if self.left else None

    with tempfile.TemporaryDirectory() as folder:
        real, ready, done = (str(Path(folder) / f"{n}.onnx") for n in ("real", "ready", "done"))
        torch.onnx.export(
            model,
            (images[:2],),
            real,
            input_names=["images"],
            dynamic_axes={"images": {0: "batch"}},
            dynamo=False,
            opset_version=17,
        )
        quant_pre_process(real, ready, skip_symbolic_shape=True)
        quantize_static(ready, done, Images(), quant_format=QuantFormat.QDQ, per_channel=True)
        return Path(done).read_bytes()


def onnx_runtime(model: bytes, *, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the model in ONNX Runtime."""
    import onnxruntime  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    return lambda images: session.run(None, {"images": images})[0]  # pyright: ignore


def openvino(
    model: bytes, shape: tuple[int, ...], *, threads: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the model in OpenVINO, compiled for images of this shape."""
    import openvino as ov  # noqa: PLC0415 -- an extra

    core = ov.Core()
    read = core.read_model(model, b"")
    read.reshape(list(shape))
    # Without the hint, layers that are not quantised run in bf16 if the CPU has it.
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    return lambda images: request.infer({0: images})[0]


def openvino_throughput(model: bytes, *, batch: int, threads: int) -> Callable[[np.ndarray], None]:
    """Return the model in OpenVINO's throughput mode: it takes any number of images.

    Images left over after whole batches are not run.
    """
    import openvino as ov  # noqa: PLC0415 -- an extra

    core = ov.Core()
    read = core.read_model(model, b"")
    read.reshape([batch, 3, 32, 32])
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    queue = ov.AsyncInferQueue(core.compile_model(read, "CPU", settings))

    def run(images: np.ndarray) -> None:
        for first in range(0, len(images) - batch + 1, batch):
            queue.start_async({0: images[first : first + batch]}, share_inputs=True)
        queue.wait_all()

    return run
