"""The modes ``--sweep`` and ``--grow`` of ``bench_inference.py``.

``sweep`` times one layer of every stage over the share of active levels: events, dense products and
oneDNN. ``growth`` times a whole ResNet-20 while one setting changes; the others are T=2, levels
0..5, 0.151 of them active, one image, one thread. Dense engines run one image per timestep.
"""

import statistics
from functools import partial
from typing import Any

import torch
from dense_engines import int8_resnet, onednn_runs, onnx_runs, products_of
from measure import Run, interleaved
from sparse_networks import LEVEL_LAW, UNIFORM, build, by_stage, make_sparse

from lbq.graph import LoweredNetwork
from lbq.graph.graph import GraphBuilder
from lbq.graph.operators import IntegerNeuron, Readout, Shortcut, Synapse
from lbq.runtime.native_engine import NativeEngine

LAYERS = {
    "wide": {"128 at 32x32": (128, 32), "256 at 16x16": (256, 16), "512 at 8x8": (512, 8)},
    "narrow": {"16 at 32x32": (16, 32), "32 at 16x16": (32, 16), "64 at 8x8": (64, 8)},
}
"""Channels and size of the layers at the paper's width, and at an eighth of it."""
ACTIVITIES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
TIMESTEPS, LAYER = 2, "neuron"


def one_layer(channels: int, size: int) -> LoweredNetwork:
    """Return neurons whose levels equal the inputs 0..5, a 3x3 synapse and a neuron."""
    torch.manual_seed(0)
    weight = (30 * torch.randn(channels, channels, 3, 3)).round().clamp(-127, 127).to(torch.int8)
    shape = (channels, size, size)
    net = GraphBuilder(timesteps=TIMESTEPS, input_shape=shape, takes_frames=True, logit_scale=1.0)
    largest = len(LEVEL_LAW)
    one, thresholds = torch.ones(1), torch.arange(1, largest + 1, dtype=torch.int32).reshape(-1, 1)
    told = net.add("told", Shortcut(one.to(torch.int16), max_input=255), "input")
    again = IntegerNeuron(
        thresholds, multiplier=0, shift=0, reset_amount=0 * one.int(), reset="none"
    )
    levels = net.add("again", again, told)
    synapse = Synapse(weight, max_input=largest, padding=(1, 1), bits=8)
    step = torch.tensor([3000], dtype=torch.int32)
    neuron = IntegerNeuron(
        step * thresholds, multiplier=1, shift=1, reset_amount=step, reset="event"
    )
    made = net.add(LAYER, neuron, net.add("synapse", synapse, levels))
    out = Synapse(torch.ones(1, channels, 1, 1, dtype=torch.int8), max_input=largest, bits=8)
    net.add("readout", Readout("sum"), net.add("out", out, made))
    return net.finish()


def levels_of(channels: int, size: int, activity: float) -> torch.Tensor:
    """Return levels with this share active, and the paper's shares of 1..5."""
    torch.manual_seed(3)
    shape = (TIMESTEPS, 1, channels, size, size)
    law = torch.tensor(LEVEL_LAW)
    drawn = torch.multinomial(law, TIMESTEPS * channels * size * size, replacement=True) + 1
    return torch.where(torch.rand(shape) < activity, drawn.reshape(shape), 0).to(torch.uint8)


def sweep(width: str, *, rounds: int) -> list[dict[str, Any]]:
    """Time every layer and activity: milliseconds of one thread in the fastest round."""
    rows: list[dict[str, Any]] = []
    for name, (channels, size) in LAYERS[width].items():
        net = one_layer(channels, size)
        synapse = net.operators["synapse"]
        assert isinstance(synapse, Synapse)
        engines = {choice: NativeEngine(net, choice=choice) for choice in ("events", "dense")}
        for activity in ACTIVITIES:
            levels = levels_of(channels, size, activity)
            runs = onednn_runs([(synapse, levels.flatten(0, 1))])
            times: dict[str, list[float]] = {}
            for _ in range(rounds):
                for run, [taken] in interleaved(runs, rounds=1, warmups=1, device="cpu").items():
                    times.setdefault(run, []).append(taken)
                for choice, engine in engines.items():
                    times.setdefault(f"engine, {choice}", []).append(_of_layer(engine, levels))
            row: dict[str, Any] = {"layer": name, "activity": activity}
            row |= {run: 1e3 * min(taken) for run, taken in times.items()}
            rows.append(row)
            print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else v for k, v in row.items()))
    return rows


def _of_layer(engine: NativeEngine, levels: torch.Tensor) -> float:
    return next(stage.seconds for stage in engine.time_stages(levels) if stage.path == LAYER)


BATCHES, FEW = (1, 4, 16, 64), 3
"""Images per call, and the rounds of calls with more than one."""
AXES: dict[str, list[dict[str, Any]]] = {
    "timesteps": [{"timesteps": t} for t in (1, 2, 4, 8)],
    "levels": [{"max_level": level} for level in (1, 2, 5, 10, 20)],
    "width": [{"width": width} for width in (0.125, 0.25, 0.5, 1.0)],
    "batch": [{"batch": batch, "threads": 1} for batch in BATCHES],
    "batch, two threads": [{"batch": batch, "threads": 2} for batch in BATCHES],
}
KEYS = {"timesteps": "T", "max_level": "N_max"}
"""Their names in a record."""


def growth(*, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Time every axis; milliseconds of the fastest and the median round."""
    return {
        axis: [
            {KEYS.get(key, key): value for key, value in settings.items()}
            | _time(rounds, **settings)
            for settings in points
        ]
        for axis, points in AXES.items()
    }


def law_of(max_level: int) -> tuple[float, ...]:
    """Return the shares of 1..N among active neurons: the paper's for 5, halving elsewhere."""
    if max_level == len(LEVEL_LAW):
        return LEVEL_LAW
    shares = [0.5**level for level in range(1, max_level + 1)]
    return tuple(share / sum(shares) for share in shares)


def _time(
    rounds: int,
    *,
    timesteps: int = 2,
    max_level: int = 5,
    width: float = 1.0,
    batch: int = 1,
    threads: int = 1,
) -> dict[str, Any]:
    torch.set_num_threads(threads)
    rounds = min(rounds, FEW) if batch > 1 else rounds
    net = build(width=width, timesteps=timesteps, max_level=max_level)
    torch.manual_seed(1)
    probe = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    net = make_sparse(net, probe, by_stage(net, UNIFORM, law_of(max_level)))
    images = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8)
    engine = NativeEngine(net)
    runs: dict[str, Run] = {"engine": partial(engine.run, images, threads=threads)}
    runs |= onednn_runs(products_of(net, images))
    del runs["oneDNN fp32"]
    runs |= onnx_runs(int8_resnet(width), timesteps * batch, threads)
    with torch.inference_mode():
        times = interleaved(runs, rounds=rounds, warmups=1, device="cpu")
    row = {name: 1e3 * statistics.median(taken) for name, taken in times.items()}
    print("  ".join(f"{name} {ms:.2f}" for name, ms in row.items()), flush=True)
    return {"median_ms": row, "min_ms": {name: 1e3 * min(t) for name, t in times.items()}}
