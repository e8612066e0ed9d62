"""The example server answers with the integers of the network, and refuses what it cannot take."""

import http.client
import json
import socket
import struct
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import tiny_network

import lbq

SERVER = Path(__file__).parents[3] / "examples" / "serve_onnx.py"
MIB = 2**20

pytestmark = pytest.mark.multi


@contextmanager
def served(network, folder, **options):
    """Serve a network; give the process, with its ``port`` and its ``log``."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install starlette uvicorn")
    lbq.formats.export_onnx(network, folder / "net.onnx", style="exact", **options)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, SERVER, folder / "net.onnx", "--port", str(port)]
    log = folder / "log"
    with open(log, "w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        while True:
            assert server.poll() is None, log.read_text()
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        server.port, server.log = port, log
        yield server
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Serve the tiny network, whose images have 50 bytes."""
    with served(tiny_network(), tmp_path_factory.mktemp("served")) as running:
        yield running


def ask(server, body):
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("POST", "/predict", body=body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def connect(server, *lines):
    """Send the start of a request and leave the connection open."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    connection.sendall("\r\n".join(("POST /predict HTTP/1.1", "Host: a", *lines, "", "")).encode())
    return connection


def send_blocks(connection, blocks):
    """Send blocks until the server hangs up; return how many went out."""
    for sent, block in enumerate(blocks):
        try:
            connection.sendall(block)
        except OSError:
            return sent
    return len(blocks)


def resident_mib(server):
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def frames_network(outputs=1, *, over_time=False):
    """A network of two frames of four bytes, with 3 and 2 logits."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.neuron = torch.nn.Linear(4, 8), lbq.BurstLIF(5, step=20.0)
            self.heads = torch.nn.ModuleList(torch.nn.Linear(8, 3 - i) for i in range(outputs))

        def forward(self, frames):
            levels = self.neuron(self.first(frames))
            logits = [head(levels) for head in self.heads]
            logits = logits if over_time else [each.mean(0) for each in logits]
            return logits[0] if outputs == 1 else tuple(logits)

    torch.manual_seed(0)
    return lbq.quantize(Net().eval(), torch.randint(0, 256, (2, 8, 4)).float())


def test_requests_get_the_integers_of_the_network(server):
    images = np.random.default_rng(0).integers(0, 256, (5, 2, 5, 5), np.uint8)
    expected = lbq.run_network(tiny_network(), torch.from_numpy(images), backend="dense")
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        for image, logits in zip(images, expected, strict=True):  # on one connection
            connection.request("POST", "/predict", body=image.tobytes())
            answer = connection.getresponse()
            assert answer.status == 200
            found = json.loads(answer.read())
            assert found == {"class": int(logits.argmax()), "logits": logits.tolist()}
        connection.request("POST", "/predict", body=b"short")
        answer = connection.getresponse()
        assert answer.status == 400
        problem = {"error": "expected 50 bytes, uint8 [2, 5, 5], got 5"}
        assert json.loads(answer.read()) == problem


@pytest.mark.parametrize("case", ["frames", "two outputs", "over time", "with levels"])
def test_networks_of_frames_and_of_several_outputs_are_served(case, tmp_path):
    network = frames_network(2 if case == "two outputs" else 1, over_time=case == "over time")
    frames = np.random.default_rng(0).integers(0, 256, (2, 1, 4), np.uint8)
    found = lbq.run_network(network, torch.from_numpy(frames), backend="dense")
    outputs = found if isinstance(found, tuple) else (found,)
    outputs = [each[:, 0] if case == "over time" else each[0] for each in outputs]
    suffixes = ["_0", "_1"] if len(outputs) == 2 else [""]
    expected = {}
    for suffix, logits in zip(suffixes, outputs, strict=True):
        expected[f"class{suffix}"] = logits.argmax(-1).tolist()
        expected[f"logits{suffix}"] = logits.tolist()
    with served(network, tmp_path, outputs_levels=case == "with levels") as server:
        assert ask(server, frames.tobytes()) == (200, expected)
        status, answer = ask(server, b"123")
    assert status == 400
    assert answer == {"error": "expected 8 bytes, uint8 [2, 4], got 3"}


@pytest.mark.parametrize("header", ["Content-Length: 1572864000", "Transfer-Encoding: chunked"])
def test_an_unfinished_body_that_is_too_large_costs_no_memory(header, server):
    before = resident_mib(server)
    block = b"x" * MIB
    if "chunked" in header:
        block = b"%x\r\n%s\r\n" % (len(block), block)
    with closing(connect(server, header)) as connection:
        sent = send_blocks(connection, [block] * 400)
        assert sent < 20, f"the server took {sent} MiB for an image of 50 bytes"
    assert resident_mib(server) - before < 20
    assert ask(server, bytes(50))[0] == 200


@pytest.mark.parametrize("header", ["Content-Length: 51", "Content-Length: 99999999999999"])
def test_a_body_that_is_announced_as_too_large_is_refused_before_it_comes(header, server):
    with closing(connect(server, header)) as connection:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413
        assert "expected 50 bytes" in json.loads(answer.read())["error"]
        assert connection.recv(1) == b"", "the connection must end: its body is not read"


def test_a_chunked_body_that_grows_too_large_is_refused(server):
    with closing(connect(server, "Transfer-Encoding: chunked")) as connection:
        connection.sendall(b"32\r\n" + bytes(50) + b"\r\n1\r\n")  # 50 bytes, then one more
        connection.sendall(b"\0\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 413


def test_clients_that_disconnect_leave_no_traceback(server):
    for body in (b"", b"x", bytes(49)):
        for abort in (False, True):
            connection = connect(server, "Content-Length: 50")
            connection.sendall(body)
            time.sleep(0.05)  # the server waits for the rest
            if abort:  # a reset instead of an orderly end
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.close()
    for _ in range(5):  # gone before the answer
        connection = connect(server, "Content-Length: 50")
        connection.sendall(bytes(50))
        connection.close()
    assert ask(server, bytes(50))[0] == 200
    time.sleep(0.2)
    assert "Traceback" not in server.log.read_text()


def test_slow_clients_keep_no_others_from_an_answer(server):
    slow = [connect(server, "Content-Length: 50") for _ in range(50)]
    assert ask(server, bytes(50))[0] == 200
    for connection in slow:
        connection.close()


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Content-Length: -1", b""),
        ("Content-Length: x", b""),
        ("Content-Length: 5\r\nContent-Length: 6", b"12345"),
        ("Transfer-Encoding: chunked", b"zz\r\n"),
        ("Transfer-Encoding: gzip", b""),
    ],
)
def test_requests_that_are_not_http_are_refused_without_a_traceback(header, body, server):
    with closing(connect(server, header)) as connection:
        connection.sendall(body)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert 400 <= answer.status < 500
    assert ask(server, bytes(50))[0] == 200
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("kind", ["missing", "text", "real numbers"])
def test_files_that_it_cannot_serve_are_refused_in_one_line(kind, tmp_path):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install starlette uvicorn")
    path = tmp_path / "net.onnx"
    if kind == "text":
        path.write_text("not a network")
    elif kind == "real numbers":
        lbq.formats.export_onnx(tiny_network(is_integer=False), path)
    done = subprocess.run(
        [sys.executable, SERVER, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert str(path) in done.stderr.splitlines()[-1]
