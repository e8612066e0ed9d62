"""An invented run, with numbers that differ from one another."""

from dataclasses import replace

from lbq.analysis.layer_stats import (
    BINS_PER_STEP,
    MARGIN,
    LayerLevels,
    LayerMembranes,
    LayerStep,
    LevelProfile,
    StepProfile,
)
from lbq.analysis.run_summary import RunSummary
from lbq.cost.count_table import Counts, CountTable, EdgeCounts, LayerCounts, SynapseSize
from lbq.cost.energy import HOROWITZ_2014, EnergyReport, EnergyRow, Traffic

LAYERS = ("stem", "first", "second")


def steps(scale=1.0, is_learned=True):
    values = [scale * value for value in (0.25, 0.125, 0.5)]
    return StepProfile(
        layers=tuple(
            LayerStep(layer=name, mean=v, smallest=v, largest=v, is_learned=is_learned)
            for name, v in zip(LAYERS, values, strict=True)
        )
    )


def levels(max_level=5):
    return LevelProfile(
        num_images=40,
        layers=tuple(
            LayerLevels(layer=name, counts=(100 * (i + 1), *range(max_level + i, i, -1)))
            for i, name in enumerate(LAYERS)
        ),
    )


def membranes():
    return tuple(
        LayerMembranes(
            layer=name,
            max_level=5,
            plateau=(1.0, 5.0),
            tail=0.5,
            histogram=tuple(range((5 + 2 * MARGIN) * BINS_PER_STEP)),
            total=10_000,
            num_below=6000 + i,
            num_above=1000,
            num_outside_box=5000,
        )
        for i, name in enumerate(LAYERS)
    )


def counts(**changes):
    """Return counts whose values per image differ from one another."""
    edges = tuple(
        EdgeCounts(
            source=name,
            target=f"into {name}",
            t=0,
            is_identity=False,
            counts=Counts(
                unary_acs=40 * (4_000_000 + i),
                bit_sparse_acs=60_000_000,
                explicit_shifts=30_000_000,
            ),
        )
        for i, name in enumerate(LAYERS)
    )
    identity = replace(edges[0], is_identity=True, counts=Counts(unary_acs=2_500_000))
    size = {"num_weights": 1, "inputs": 1}
    stem = SynapseSize(
        name="s", macs=750_000, padded_macs=0, timesteps=1, has_real_input=True, **size
    )
    body = SynapseSize(
        name="b", macs=2 * 122_706_789, padded_macs=0, timesteps=2, has_real_input=False, **size
    )
    layer = LayerCounts(
        layer="stem", t=0, neurons=1, active=1, max_level=5, plane_formations=5_000_000
    )
    fields = {
        "num_images": 40, "timesteps": 2, "synapses": (stem, body), "edges": (*edges, identity),
        "layers": (layer,),
    }  # fmt: skip
    return CountTable(**(fields | changes))


def energy(*memory):
    """Return an energy report with these rows of memory traffic."""
    nothing = Traffic(weight_bytes=0, activation_bytes=0, state_bytes=0)
    return EnergyReport(
        technology=replace(HOROWITZ_2014, source="a book & a half"),
        arithmetic=(
            EnergyRow(name="paper", convention="floats", ann_mj=4.0, burst_mj=0.5),
            EnergyRow(name="int8, 32-bit sums", convention="integers", ann_mj=1.0, burst_mj=0.25),
        ),
        memory=memory,
        ann_traffic=nothing,
        burst_traffic=nothing,
    )


def metrics_log():
    yield {"event": "start", "step": 0, "time": 1e9, "parameters": 4321, "device": "cpu"}
    for epoch in (1, 2):
        step = 10 * epoch
        yield {"event": "train", "step": step, "epoch": epoch, "loss": 2 / epoch, "accuracy": 0.1}
        yield {
            "event": "evaluation", "step": step, "epoch": epoch, "accuracy": (60 + epoch) / 80,
            "correct": 60 + epoch, "count": 80, "loss": 1.23456 / epoch,
            "best_on_test_set": {"accuracy": 62 / 80, "epoch": 2},
        }  # fmt: skip
    yield {"event": "finish", "step": 20, "time": 1e9 + 7200}


def run(name="invented", **changes):
    fields = {
        "name": name,
        "step": 20,
        "metrics_log": tuple(metrics_log()),
        "recipe": {
            "name": "r",
            "data": {"source": "<nowhere>", "flip": True},
            "model": {"name": "resnet20", "width": 0.5, "timesteps": 2, "neuron": {"kind": "lbq"}},
            "epochs": 2,
        },
        "provenance": {"commit": "c0ffee", "versions": {"torch": "2.13.0"}},
        "steps": steps(),
        "levels": levels(),
        "membranes": membranes(),
        "counts": counts(),
        "energy": energy(),
    }
    return RunSummary(**(fields | changes))
