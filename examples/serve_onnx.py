"""Serve an exported ONNX file over HTTP: one image per request, classes and integer logits back.

    python examples/serve_onnx.py net.onnx --port 8000
    curl --data-binary @image.u8 http://127.0.0.1:8000/predict

The body is the raw uint8 pixels of one image, [C, H, W]. uvicorn and starlette parse HTTP, keep
connections open and stop cleanly; the standard library's server is not meant for production.
"""

import argparse
import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def application(path: str) -> Starlette:
    """Load the file once; every request runs on one thread, several of them at once."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    [given] = session.get_inputs()
    shape = tuple(given.shape[1:])
    size = int(np.prod(shape))

    async def predict(request: Request) -> JSONResponse:
        body = await request.body()
        if len(body) != size:
            problem = f"expected {size} bytes, uint8 {list(shape)}, got {len(body)}"
            return JSONResponse({"error": problem}, status_code=400)
        image = np.frombuffer(body, np.uint8).reshape(1, *shape)
        [logits] = await run_in_threadpool(session.run, None, {given.name: image})
        return JSONResponse({"class": int(logits[0].argmax()), "logits": logits[0].tolist()})

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    uvicorn.run(application(options.file), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
