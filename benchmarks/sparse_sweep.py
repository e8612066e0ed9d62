"""One layer of every stage over activity: where events, dense products and oneDNN cross."""

from typing import Any

import torch
from dense_engines import onednn_runs
from measure import interleaved
from sparse_networks import LEVEL_LAW

from lbq.deploy import LoweredNetwork
from lbq.deploy.native_engine import NativeEngine
from lbq.deploy.nodes import IntegerNeuron, Readout, Shortcut, Synapse

LAYERS = {"128 at 32x32": (128, 32), "256 at 16x16": (256, 16), "512 at 8x8": (512, 8)}
ACTIVITIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
TIMESTEPS, LAYER = 2, "neuron"


def one_layer(channels: int, size: int) -> LoweredNetwork:
    """Return a 3x3 synapse and a neuron behind neurons that say again what they are told, 0..5."""
    torch.manual_seed(0)
    weight = (30 * torch.randn(channels, channels, 3, 3)).round().clamp(-127, 127).to(torch.int8)
    shape = (channels, size, size)
    net = LoweredNetwork(timesteps=TIMESTEPS, input_shape=shape, takes_frames=True, logit_scale=1.0)
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
    return net


def levels_of(channels: int, size: int, activity: float) -> torch.Tensor:
    """Return levels of which this share is active, divided over 1..5 as the paper's."""
    torch.manual_seed(3)
    shape = (TIMESTEPS, 1, channels, size, size)
    law = torch.tensor(LEVEL_LAW)
    drawn = torch.multinomial(law, TIMESTEPS * channels * size * size, replacement=True) + 1
    return torch.where(torch.rand(shape) < activity, drawn.reshape(shape), 0).to(torch.uint8)


def sweep(*, rounds: int) -> list[dict[str, Any]]:
    """Time every layer and activity: milliseconds of one thread in the fastest round."""
    rows: list[dict[str, Any]] = []
    for name, (channels, size) in LAYERS.items():
        net = one_layer(channels, size)
        synapse = net.get_submodule("synapse")
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
    return next(step.seconds for step in engine.time_steps(levels) if step.path == LAYER)
