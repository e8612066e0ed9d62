"""Small experiments for two CPU cores: the same questions, with a network that trains in minutes.

One recipe, :func:`pocket_science`; every experiment differs from it in what it asks, and neurons
without a native kernel are compiled, which is three times as fast. Steps start, or stay, at 1.0 as
in the full-size recipes; where else they might start is a question of group d.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from lbq.train import NeuronConfig, OptimConfig, Recipe, ScheduleConfig
from lbq.train.recipes import pocket
from lbq_paper.experiments import Experiment, merged
from lbq_paper.full_size import ABLATION, COSTS, LBQ, LMHT, cost_entries, with_neuron

ABLATION_SEEDS = (0, 1, 2)
SEEDS = (0, 1)
CALIBRATION_PERCENTILE = 99.0

OPEN_POINTS: dict[str, dict[str, NeuronConfig]] = {
    "LBQ, step from 1.0": {
        "step from 0.5": replace(LBQ, step=0.5),
        "step from 0.2": replace(LBQ, step=0.2),
        "step calibrated": LBQ,
        "one step per channel": replace(LBQ, step_per_channel=True),
        "LSQ gradient scale": replace(LBQ, gradient_scale="lsq"),
        "reset by level": replace(LBQ, reset_mode="level"),
        "no reset": replace(LBQ, reset_mode="none"),
    },
    "V2, step fixed at 1.0": {
        "V2, step fixed at 0.5": NeuronConfig(kind="v2", max_level=5, step=0.5),
        "V2, step fixed at 0.25": NeuronConfig(kind="v2", max_level=5, step=0.25),
    },
    "V3, Box-ET [0.5, N+0.5]": {
        "Box-ET [1, N]": replace(ABLATION["V3/learnable"], surrogate="matched-box"),
        "Box-ET [0, N]": replace(ABLATION["V3/learnable"], surrogate="clip-box"),
        "Box-ET with fixed tails": replace(ABLATION["V3/learnable"], surrogate="tailed-box"),
    },
}
"""What the paper leaves open: a row of the ablation, and what differs from it in one choice."""

_COMPILED = ("binary", "ternary", "ternary-learned", "lmht", "ilif")
"""Kinds of neurons that loop over the timesteps in plain torch. So does "mlf", of whose loop torch
2.13 compiles a backward with NaNs in it (docs/log.md)."""

_Row = tuple[str, str, str, Recipe]  # group, entry, method, recipe


def pocket_science() -> Recipe:
    """CIFAR-10 for a study of many runs: one block per stage, a quarter of the width, 6 epochs.

    The first stage halves the image as well: for its time that buys more accuracy than the same
    products at full resolution and half the channels.
    """
    like = pocket()
    return replace(
        like,
        name="pocket-science",
        model=replace(
            like.model, neuron=LBQ, blocks=(1, 1, 1), width=0.25, first_stage_stride=2, timesteps=2
        ),
        epochs=6,
        batch=128,
        optim=OptimConfig(kind="sgd", lr=0.2, weight_decay=5e-4),
        schedule=ScheduleConfig(warmup_epochs=0.5, moves="step"),
        evaluate_every=3,
    )


def study_recipe(neuron: NeuronConfig) -> Recipe:
    """Give the recipe another neuron."""
    recipe = with_neuron(pocket_science(), neuron)
    return replace(recipe, compile=neuron.kind in _COMPILED)


def describe_pocket() -> str:
    """Say in words what the small experiments have in common."""
    recipe = pocket_science()
    model = recipe.model
    return (
        f"CIFAR-10, {model.name} with {model.blocks} blocks per stage at {model.width:g} of the "
        f"width, the first stage of stride {model.first_stage_stride}, T = {model.timesteps}, "
        f"{recipe.epochs} epochs"
    )


@cache
def pocket_experiments() -> tuple[Experiment, ...]:
    """List every small experiment, each with all of its entries and groups."""
    rows = [*_ablation(), *_levels(), *_timesteps(), *_open_points(), *_others()]
    ablation = [study_recipe(neuron) for neuron in ABLATION.values()]
    return merged(
        Experiment(
            entries=(entry,),
            method=method,
            recipe=replace(recipe, seed=seed),
            size="pocket",
            groups=(group,),
        )
        for group, entry, method, recipe in rows
        for seed in (ABLATION_SEEDS if recipe in ablation else SEEDS)
    )


def _ablation() -> Iterator[_Row]:
    for row, neuron in ABLATION.items():
        yield "a", f"ablation/{row}", row, study_recipe(neuron)
    for row in ("Binary", "Ternary", "LBQ (5)"):  # the same networks, counted
        for entry in cost_entries(row):
            yield "a", entry, row, study_recipe(COSTS[row])
    yield "a", "energy/ANN", "ANN", study_recipe(ABLATION["ANN"])


def _levels() -> Iterator[_Row]:
    for n in (1, 2, 5, 10, 20):
        recipe = study_recipe(replace(LBQ, max_level=n))
        for entry in cost_entries(f"LBQ ({n})"):
            yield "b", entry, f"LBQ ({n})", recipe


def _timesteps() -> Iterator[_Row]:
    like = pocket_science()
    for t in (1, 2, 4):
        recipe = replace(like, model=replace(like.model, timesteps=t))
        yield "c", f"CIFAR-10/ResNet-20/LBQ/T={t}", f"LBQ, T={t}", recipe


def _open_points() -> Iterator[_Row]:
    like = pocket_science()
    references = dict(zip(OPEN_POINTS, ("LBQ/learnable", "V2/fixed", "V3/learnable"), strict=True))
    for reference, choices in OPEN_POINTS.items():
        yield "d", f"open/{reference}", reference, study_recipe(ABLATION[references[reference]])
        for method, neuron in choices.items():
            recipe = study_recipe(neuron)
            if method == "step calibrated":
                recipe = replace(like, calibrate=CALIBRATION_PERCENTILE)
            yield "d", f"open/{method}", method, recipe


def _others() -> Iterator[_Row]:
    """Other neurons with many levels, with as many levels as LBQ where they can have them."""
    neurons = {
        "LM-HT (L=2)": LMHT,
        "LM-HT (L=5)": replace(LMHT, max_level=5),
        "I-LIF (D=4)": NeuronConfig(kind="ilif"),
        "MLF (K=3)": NeuronConfig(kind="mlf"),
    }
    for method, neuron in neurons.items():
        entry = f"CIFAR-10/ResNet-20/{method}/T=2"
        yield "e", entry, method, study_recipe(neuron)
