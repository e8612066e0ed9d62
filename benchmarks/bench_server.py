"""examples/serve_onnx.py under load: its capacity, then latencies at 80 % of it.

    python benchmarks/bench_server.py --seconds 600 --out benchmarks/results/server.json

The pocket network, exported in the style "fast", answers one CIFAR-10 image per request. Four
connections that never wait give the capacity: the lowest of six measurements, since the clock of a
shared machine changes within minutes. Then requests arrive at 80 % of it, at random moments
(Poisson), whether earlier ones are answered or not; a latency counts from the moment when a request
was due. Every answer is compared with ``lbq.run_network``. The clients share the machine with the
server. If the whole machine stops this process for more than a second, the schedule continues
afterwards, and the requests that were in flight are checked but not part of the latencies.
"""

import argparse
import http.client
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar10 import MEAN, STD, read_cifar10, read_cifar10_bytes
from measure import write_record

import lbq
from lbq.formats import OnnxRunner, export_onnx

SERVER = Path(__file__).parents[1] / "examples" / "serve_onnx.py"
IMAGES, CLIENTS, CAPACITIES, STOP_S = 1000, 32, 6, 1.0


class Client:
    """One connection that stays open."""

    def __init__(self, port: int, images: list[bytes], expected: list[list[int]]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.images, self.expected = images, expected

    def ask(self, number: int) -> bool:
        """Send one image; return whether the answer is right."""
        self.connection.request("POST", "/predict", body=self.images[number % IMAGES])
        answer = self.connection.getresponse()
        body = answer.read()
        return answer.status == 200 and json.loads(body)["logits"] == self.expected[number % IMAGES]


def measure_capacity(clients: list[Client], seconds: float) -> float:
    """Return the requests per second of connections that never wait."""
    end, counts = time.perf_counter() + seconds, [0] * len(clients)

    def ask(place: int) -> None:
        while time.perf_counter() < end:
            if not clients[place].ask(counts[place]):
                sys.exit("a wrong answer")
            counts[place] += 1

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def load(clients: list[Client], rate: float, seconds: float) -> dict[str, Any]:
    """Send requests at this rate on average; return counts and latencies."""
    due: queue.Queue[tuple[int, float] | None] = queue.Queue()
    answered: list[tuple[float, float]] = []
    errors: list[str] = []

    def ask(client: Client) -> None:
        while (item := due.get()) is not None:
            number, moment = item
            try:
                if not client.ask(number):
                    errors.append(f"request {number}: a wrong answer")
            except (OSError, http.client.HTTPException) as error:
                errors.append(f"request {number}: {error!r}")
            answered.append((moment, time.perf_counter()))

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    dice, number, stops = random.Random(0), 0, []  # noqa: S311 -- moments, no secrets
    moment = time.perf_counter()
    end = moment + seconds
    while moment < end:
        time.sleep(max(0.0, moment - time.perf_counter()))
        now = time.perf_counter()
        if now - moment > STOP_S:
            stops.append((moment, now))
            moment, end = now, end + now - moment
        due.put((number, moment))
        number, moment = number + 1, moment + dice.expovariate(rate)
    for _ in clients:
        due.put(None)
    for thread in threads:
        thread.join()
    kept = [
        (asked, done - asked)
        for asked, done in answered
        if not any(asked < end and begin < done for begin, end in stops)
    ]
    latencies, begin = [latency for _, latency in kept], min(asked for asked, _ in kept)
    minutes: dict[int, list[float]] = {}
    for asked, latency in kept:
        minutes.setdefault(int((asked - begin) / 60), []).append(latency)
    return {
        "seconds": seconds,
        "requests": number,
        "errors": errors[:10],
        "num_errors": len(errors),
        "stops_s": [round(end - begin, 1) for begin, end in stops],
        "requests_at_stops": number - len(latencies),
        **percentiles(latencies),
        "every_minute": [percentiles(minutes[minute]) for minute in sorted(minutes)],
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return latencies in milliseconds."""
    p50, p99, most = np.percentile(seconds, [50, 99, 100]) * 1000
    return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(most, 2)}


def in_process(file: Path, images: np.ndarray, seconds: float) -> dict[str, float]:
    """Run the file on batches of one image in this process, one thread."""
    runner, taken = OnnxRunner(file, threads=1), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        image = images[len(taken) % IMAGES][None]
        start = time.perf_counter()
        runner(image)
        taken.append(time.perf_counter() - start)
    return percentiles(taken)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--capacity-seconds", type=float, default=10)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    some, _ = read_cifar10("train", 512)
    pixels, _ = read_cifar10_bytes("test", IMAGES)
    given = lbq.Pixels(mean=MEAN, std=STD)
    model = lbq.load_pretrained("pocket-cifar10")
    net = lbq.to_fixed_point(lbq.lower(model, some[:1]), pixels=given, calibration=some)
    expected = lbq.run_network(net, pixels).tolist()
    bodies = [image.tobytes() for image in pixels.numpy()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        export_onnx(net, file, style="fast")
        alone = in_process(file, pixels.numpy(), options.capacity_seconds)
        command = [sys.executable, SERVER, file, "--port", str(options.port)]
        server = subprocess.Popen(command)  # noqa: S603 -- our own example
        try:
            clients = [Client(options.port, bodies, expected) for _ in range(CLIENTS)]
            wait_for(clients[0])
            capacities = [
                measure_capacity(clients[:4], options.capacity_seconds) for _ in range(CAPACITIES)
            ]
            capacity = min(capacities)
            found = load(clients, options.share * capacity, options.seconds)
            after = measure_capacity(clients[:4], options.capacity_seconds)
        finally:
            server.terminate()
            server.wait()
    record = {
        "network": "pocket-cifar10",
        "style": "fast",
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "in_process": alone,
        "capacity_per_s": round(capacity, 1),
        "capacities_before": [round(each, 1) for each in capacities],
        "capacity_after": round(after, 1),
        "share_of_capacity": options.share,
        **found,
    }
    print(json.dumps(record, indent=1))
    write_record(options.out, record)


def wait_for(client: Client) -> None:
    """Return when the server answers."""
    for _ in range(600):
        try:
            client.ask(0)
        except OSError:
            client.connection.close()
            time.sleep(0.1)
        else:
            return
    sys.exit("the server did not start")


if __name__ == "__main__":
    main()
