"""Serve an exported ONNX file over HTTP: one sample per request, classes and integer logits back.

    python examples/serve_onnx.py net.onnx --port 8000
    curl --data-binary @image.u8 http://127.0.0.1:8000/predict

The body is the raw uint8 pixels of one image, [C, H, W], or all frames of one recording,
[T, C, H, W]. The answer has "class" and "logits"; with several outputs "class_0", "logits_0" and so
on. uvicorn and starlette parse HTTP, keep connections open and stop cleanly; the standard library's
server is not meant for production.
"""

import argparse
import os
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Network:
    """An ONNX file, loaded once; every call runs on one thread, several of them at once."""

    def __init__(self, path: str) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            path, settings, providers=["CPUExecutionProvider"]
        )
        [given] = self._session.get_inputs()
        if given.type != "tensor(uint8)":
            raise ValueError(f"takes {given.type}, not bytes; export an integer network")
        self._name, self._axis = given.name, _batch_axis(given.shape)
        self.shape = tuple(size for i, size in enumerate(given.shape) if i != self._axis)
        answers = [one for one in self._session.get_outputs() if one.name.startswith("logits")]
        self._outputs = {one.name: _batch_axis(one.shape) for one in answers}
        self._suffixes = [f"_{i}" for i in range(len(answers))] if len(answers) > 1 else [""]

    def __call__(self, body: bytes) -> dict[str, Any]:
        """Return the classes and logits of one sample; those of a sequence are lists over time."""
        sample = np.frombuffer(body, np.uint8).reshape(self.shape)
        inputs = {self._name: np.expand_dims(sample, self._axis)}
        found = self._session.run([*self._outputs], inputs)
        answer = {}
        for suffix, output, axis in zip(self._suffixes, found, self._outputs.values(), strict=True):
            logits = np.asarray(output).take(0, axis)
            over_time = logits.shape[:axis]  # [T] where time stands before the batch
            answer[f"class{suffix}"] = logits.reshape(*over_time, -1).argmax(-1).tolist()
            answer[f"logits{suffix}"] = logits.tolist()
        return answer


def _batch_axis(shape: list[int | str]) -> int:
    [axis] = [i for i, size in enumerate(shape) if not isinstance(size, int)]
    return axis


async def read_body(request: Request, most: int) -> bytes | None:
    """Return the body; None as soon as it has, or announces, more than ``most`` bytes."""
    if int(request.headers.get("content-length", 0)) > most:
        return None
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return bytes(body)


def application(network: Network) -> Starlette:
    """Answer requests for one network."""
    size = int(np.prod(network.shape))
    expected = f"expected {size} bytes, uint8 {list(network.shape)}"

    async def predict(request: Request) -> Response:
        try:
            body = await read_body(request, size)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        if body is None:
            problem, close = {"error": f"{expected}, got more"}, {"connection": "close"}
            return JSONResponse(problem, status_code=413, headers=close)  # the rest is not read
        if len(body) != size:
            return JSONResponse({"error": f"{expected}, got {len(body)}"}, status_code=400)
        return JSONResponse(await run_in_threadpool(network, body))

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


def main() -> None:
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    try:
        network = Network(options.file)
    except Exception as error:  # ONNX Runtime raises many types for damaged files
        parser.error(f"{options.file} cannot be served: {error}")
    uvicorn.run(application(network), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
