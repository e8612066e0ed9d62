"""The example server answers with the integers of the network, and refuses what it cannot take."""

import http.client
import json
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import tiny_network

import lbq

SERVER = Path(__file__).parents[2] / "examples" / "serve_onnx.py"


@pytest.fixture
def port(tmp_path):
    """Serve a tiny network; return the port."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install starlette uvicorn")
    lbq.formats.export_onnx(tiny_network(), tmp_path / "net.onnx", style="fast")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    command = [sys.executable, SERVER, tmp_path / "net.onnx", "--port", str(number)]
    server = subprocess.Popen(command)
    try:
        while True:
            assert server.poll() is None, "the server ended"
            try:
                socket.create_connection(("127.0.0.1", number)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        yield number
    finally:
        server.terminate()
        server.wait()


def ask(connection, body):
    connection.request("POST", "/predict", body=body)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.multi
def test_requests_get_the_integers_of_the_network(port):
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 5, 5), np.uint8)
    expected = lbq.run_network(tiny_network(), torch.from_numpy(images), backend="dense")
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        for image, logits in zip(images, expected, strict=True):
            status, answer = ask(connection, image.tobytes())
            assert status == 200
            assert answer == {"class": int(logits.argmax()), "logits": logits.tolist()}
        status, answer = ask(connection, b"short")
        assert status == 400
        assert answer == {"error": "expected 50 bytes, uint8 [2, 5, 5], got 5"}
