"""The experiments of Tables 2 to 7 as the paper ran them: its networks, its schedules.

Rows that the paper quotes from others are here where this library has their neuron; their networks
and schedules are then those of the paper's own rows, not those of the quoted work.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from lbq.train import NeuronConfig, Recipe
from lbq.train.recipes import (
    cifar10_resnet20,
    cifar10dvs_resnet20,
    cifar100_resnet20,
    gesture_resnet19,
    imagenet_resnet34,
)
from lbq_paper.experiments import Experiment, merged

SEEDS = (0, 1, 2)
"""The paper gives neither seeds nor a spread; three is the least that shows one."""
IMAGENET_SEEDS = (0,)

LBQ = NeuronConfig(kind="lbq", max_level=5)
LMHT = NeuronConfig(kind="lmht", max_level=2)
TERNARY = NeuronConfig(kind="ternary-original")

ABLATION: dict[str, NeuronConfig] = {
    "ANN": NeuronConfig(kind="relu"),
    "Binary LIF": NeuronConfig(kind="binary"),
    "Ternary Spike/fixed": NeuronConfig(kind="ternary"),
    "Ternary Spike/learnable": NeuronConfig(kind="ternary-learned"),
    "V1/fixed": NeuronConfig(kind="v1", max_level=5),
    "V2/fixed": NeuronConfig(kind="v2", max_level=5),
    "V3/learnable": NeuronConfig(kind="v3", max_level=5),
    "LBQ/learnable": LBQ,
}
"""The rows of Table 5."""

COSTS: dict[str, NeuronConfig] = {
    "Binary": ABLATION["Binary LIF"],
    "Ternary": ABLATION["Ternary Spike/fixed"],
    **{f"LBQ ({n})": replace(LBQ, max_level=n) for n in (2, 5, 10, 20)},
}
"""The spiking rows of Tables 6 and 7."""

_Row = tuple[str, str, Recipe]  # entry, method, recipe


@cache
def full_size_experiments() -> tuple[Experiment, ...]:
    """List every experiment of the paper's size, each with all of its entries."""
    found: list[Experiment] = []
    for rows, seeds in ((_small_images(), SEEDS), (_imagenet(), IMAGENET_SEEDS)):
        found += [
            Experiment(
                entries=(entry,), method=method, recipe=replace(recipe, seed=seed), size="full"
            )
            for entry, method, recipe in rows
            for seed in seeds
        ]
    return merged(found)


def with_neuron(recipe: Recipe, neuron: NeuronConfig) -> Recipe:
    """Give a recipe another neuron; without spikes, time has nothing to do."""
    timesteps = 1 if neuron.kind == "relu" else recipe.model.timesteps
    return replace(recipe, model=replace(recipe.model, neuron=neuron, timesteps=timesteps))


def cost_entries(row: str) -> tuple[str, str]:
    """Return where a row of Table 6 has its counts and where Table 7 prices them."""
    return f"accumulation/{row}", f"energy/{row}"


def _small_images() -> Iterator[_Row]:
    yield from _cifar()
    yield from _events()
    base = cifar10_resnet20(2)
    for row, neuron in ABLATION.items():
        yield f"ablation/{row}", row, with_neuron(base, neuron)
    for row, neuron in COSTS.items():
        for entry in cost_entries(row):
            yield entry, row, with_neuron(base, neuron)
    yield "energy/ANN", "ANN", with_neuron(base, ABLATION["ANN"])


def _cifar() -> Iterator[_Row]:
    """Table 2, and I-LIF, which the paper does not print."""
    others = {"LM-HT (L=2)": (LMHT, (1, 2, 4)), "Ternary Spike": (TERNARY, (2, 4))}
    others |= {"LBQ": (LBQ, (1, 2, 4)), "I-LIF (D=4)": (NeuronConfig(kind="ilif"), (2,))}
    for dataset, recipe in (("CIFAR-10", cifar10_resnet20), ("CIFAR-100", cifar100_resnet20)):
        for method, (neuron, timesteps) in others.items():
            for t in timesteps:
                entry = f"{dataset}/ResNet-20/{method}/T={t}"
                yield entry, method, with_neuron(recipe(t), neuron)
    mlf = with_neuron(cifar10_resnet20(4), NeuronConfig(kind="mlf"))
    mlf = replace(mlf, model=replace(mlf.model, name="resnet19", form="cifar"))
    yield "CIFAR-10/ResNet-19/MLF/T=4", "MLF", mlf


def _imagenet() -> Iterator[_Row]:
    """Table 3."""
    for t in (1, 2):
        recipe = imagenet_resnet34(t)
        yield f"ImageNet-1K/ResNet-34/LBQ/T={t}", "LBQ", recipe
        shallow = replace(recipe, model=replace(recipe.model, name="resnet18"))
        yield f"ImageNet-1K/ResNet-18/LBQ/T={t}", "LBQ", shallow
    lmht, ternary = (
        with_neuron(imagenet_resnet34(2), LMHT),
        with_neuron(imagenet_resnet34(4), TERNARY),
    )
    yield "ImageNet-1K/ResNet-34/LM-HT (L=2)/T=2", "LM-HT (L=2)", lmht
    yield "ImageNet-1K/ResNet-34/Ternary Spike/T=4", "Ternary Spike", ternary


def _events() -> Iterator[_Row]:
    """Table 4."""
    for method, neuron in (("LBQ", LBQ), ("LM-HT (L=2)", LMHT), ("Ternary Spike", TERNARY)):
        recipe = with_neuron(cifar10dvs_resnet20(), neuron)
        yield f"CIFAR10-DVS/ResNet-20/{method}/T=10", method, recipe
    yield "DVS128-Gesture/ResNet-19/LBQ/T=16", "LBQ", gesture_resnet19()
