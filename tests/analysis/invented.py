"""A run that nobody trained, with numbers that can be told apart on a page."""

from lbq.analysis.layer_stats import (
    BINS_PER_STEP,
    MARGIN,
    LayerLevels,
    LayerMembranes,
    LayerStep,
    LevelProfile,
    StepProfile,
)
from lbq.analysis.run_summary import Costs, EdgeCost, Price, RunSummary

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


def costs():
    edges = tuple(
        EdgeCost(source=name, target=f"into {name}", unary_acs=4e6 + i, bit_sparse_acs=1.5e6)
        for i, name in enumerate(LAYERS)
    )
    return Costs(
        num_images=40,
        timesteps=2,
        edges=edges,
        unary_acs=sum(edge.unary_acs for edge in edges),
        bit_sparse_acs=4.5e6,
        explicit_shifts=2.25e6,
        plane_formations=0.125e6,
        fp_macs=0.75e6,
        identity_acs=0.0625e6,
        ann_macs=123_456_789,
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
        "costs": costs(),
        "prices": (
            Price(group="arithmetic", name="paper", convention="floats", ann_mj=4.0, burst_mj=0.5),
            Price(
                group="arithmetic",
                name="int8, 32-bit sums",
                convention="integers",
                ann_mj=1.0,
                burst_mj=0.25,
            ),
        ),
        "prices_source": "a book & a half",
    }
    return RunSummary(**(fields | changes))
