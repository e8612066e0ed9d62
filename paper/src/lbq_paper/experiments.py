"""An experiment: one recipe and seed whose measurement fills entries in the paper's tables.

Entries are addresses: ``CIFAR-10/ResNet-20/LBQ/T=2``, ``ablation/V1/fixed`` and ``energy/LBQ (5)``
are rows of the paper, named as :mod:`lbq_paper.claims` names them; ``open/...`` are
questions that it leaves open.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import Literal

import lbq
from lbq.config_io import Document, digest, to_document
from lbq.errors import RunError
from lbq.train import NeuronConfig, OptimConfig, Recipe, ScheduleConfig
from lbq.train.recipes import (
    cifar10_resnet20,
    cifar10dvs_resnet20,
    cifar100_resnet20,
    gesture_resnet19,
    imagenet_resnet34,
    pocket,
)

Size = Literal["full", "pocket"]
"""The paper's networks and schedules, or small ones for two CPU cores."""

PRECISION = "bf16"
"""The precision of all experiments, on any machine: results are compared with each other."""

Table = Literal["2", "3", "4", "5", "6", "7", "open"]

_TABLES: dict[str, Table] = {
    "CIFAR-10": "2",
    "CIFAR-100": "2",
    "ImageNet-1K": "3",
    "CIFAR10-DVS": "4",
    "DVS128-Gesture": "4",
    "ablation": "5",
    "accumulation": "6",
    "energy": "7",
    "open": "open",
}
_ID_DIGITS = 12


def table_of(entry: str) -> Table:
    """Return the table of an entry."""
    return _TABLES[entry.partition("/")[0]]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What to run, and which table entries it fills."""

    entries: tuple[str, ...]
    """Addresses that it fills."""
    method: str
    """Name of the neuron and its settings."""
    recipe: Recipe
    """The computation, its seed included."""
    size: Size
    """Which of the two columns it fills."""
    groups: tuple[str, ...] = ()
    """Groups of small experiments: a ablation, b levels, c timesteps, d open points, e others."""

    @property
    def seed(self) -> int:
        """The seed of its recipe."""
        return self.recipe.seed

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables in which it has an entry."""
        return tuple(dict.fromkeys(table_of(entry) for entry in self.entries))

    @cached_property
    def key(self) -> str:
        """The SHA-256 of its computation, whatever the code."""
        return recipe_key(self.recipe)

    @cached_property
    def id(self) -> str:
        """A short name of recipe, seed and numerics: other weights need another id.

        The code that counts and measures is not in it; a record stores the commit of that code.
        """
        return digest({"recipe": self.key, "numerics": numerics_digest()})[:_ID_DIGITS]


def published(recipe: Recipe) -> Document:
    """Return a recipe as a document that names its data, but not their folder."""
    name = PurePath(recipe.data.source).name
    return to_document(replace(recipe, data=replace(recipe.data, source=name)))


def recipe_key(recipe: Recipe) -> str:
    """Return the SHA-256 of a recipe without its name and the folder of its data."""
    document = published(recipe)
    del document["name"]
    return digest(document)


def merged(experiments: Iterable[Experiment]) -> tuple[Experiment, ...]:
    """Join experiments that compute the same, so that one run fills several entries."""
    found: dict[str, Experiment] = {}
    for experiment in experiments:
        before = found.setdefault(experiment.key, experiment)
        assert before.size == experiment.size
        entries = tuple(dict.fromkeys(before.entries + experiment.entries))
        groups = tuple(dict.fromkeys(before.groups + experiment.groups))
        found[experiment.key] = replace(before, entries=entries, groups=groups)
    return tuple(found.values())


def in_order(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Sort by seed: an interrupted study has run everything once."""
    return sorted(experiments, key=lambda experiment: experiment.seed)


def chosen(
    experiments: Sequence[Experiment],
    *,
    ids: Sequence[str] = (),
    table: Table | None = None,
    groups: Sequence[str] = (),
) -> list[Experiment]:
    """Choose by the beginnings of ids, by table and by group; all of them by default."""
    return in_order(
        experiment
        for experiment in experiments
        if (not ids or any(experiment.id.startswith(each) for each in ids))
        and (table is None or table in experiment.tables)
        and (not groups or set(groups) & set(experiment.groups))
    )


FULL_SEEDS = (0, 1, 2)
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

_FullRow = tuple[str, str, Recipe]  # entry, method, recipe


@cache
def full_size_experiments() -> tuple[Experiment, ...]:
    """List every experiment of the paper's size, each with all of its entries."""
    found: list[Experiment] = []
    for rows, seeds in ((_small_images(), FULL_SEEDS), (_imagenet(), IMAGENET_SEEDS)):
        found += [
            Experiment(
                entries=(entry,),
                method=method,
                recipe=replace(recipe, seed=seed, precision=PRECISION),
                size="full",
            )
            for entry, method, recipe in rows
            for seed in seeds
        ]
    return merged(found)


def with_neuron(recipe: Recipe, neuron: NeuronConfig) -> Recipe:
    """Give a recipe another neuron; without spikes, one timestep is enough."""
    timesteps = 1 if neuron.kind == "relu" else recipe.model.timesteps
    return replace(recipe, model=replace(recipe.model, neuron=neuron, timesteps=timesteps))


def cost_entries(row: str) -> tuple[str, str]:
    """Return where a row of Table 6 has its counts and where Table 7 prices them."""
    return f"accumulation/{row}", f"energy/{row}"


def _small_images() -> Iterator[_FullRow]:
    yield from _cifar()
    yield from _events()
    base = cifar10_resnet20(2)
    for row, neuron in ABLATION.items():
        yield f"ablation/{row}", row, with_neuron(base, neuron)
    for row, neuron in COSTS.items():
        for entry in cost_entries(row):
            yield entry, row, with_neuron(base, neuron)
    yield "energy/ANN", "ANN", with_neuron(base, ABLATION["ANN"])


def _cifar() -> Iterator[_FullRow]:
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


def _imagenet() -> Iterator[_FullRow]:
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


def _events() -> Iterator[_FullRow]:
    """Table 4."""
    for method, neuron in (("LBQ", LBQ), ("LM-HT (L=2)", LMHT), ("Ternary Spike", TERNARY)):
        recipe = with_neuron(cifar10dvs_resnet20(), neuron)
        yield f"CIFAR10-DVS/ResNet-20/{method}/T=10", method, recipe
    yield "DVS128-Gesture/ResNet-19/LBQ/T=16", "LBQ", gesture_resnet19()


ABLATION_SEEDS = (0, 1, 2)
POCKET_SEEDS = (0, 1)
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
"""Choices that the paper leaves open: a row of the ablation, and its variants by one choice."""

_COMPILED = ("binary", "ternary", "ternary-learned", "lmht", "ilif")
"""Kinds of neurons that loop over the timesteps in plain torch. So does "mlf", of whose loop torch
2.13 compiles a backward with NaNs in it (docs/log.md)."""

_PocketRow = tuple[str, str, str, Recipe]  # group, entry, method, recipe


def pocket_science() -> Recipe:
    """CIFAR-10 for a study of many runs: one block per stage, a quarter of the width, 6 epochs.

    The first stage halves the image as well: for the same time that gives more accuracy than the
    same products at full resolution and half the channels.
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
        precision=PRECISION,
        evaluate_every=3,
    )


def study_recipe(neuron: NeuronConfig) -> Recipe:
    """Give the recipe another neuron."""
    recipe = with_neuron(pocket_science(), neuron)
    return replace(recipe, compile=neuron.kind in _COMPILED)


def describe_pocket() -> str:
    """Describe the common settings of the small experiments."""
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
        for seed in (ABLATION_SEEDS if recipe in ablation else POCKET_SEEDS)
    )


def _ablation() -> Iterator[_PocketRow]:
    for row, neuron in ABLATION.items():
        yield "a", f"ablation/{row}", row, study_recipe(neuron)
    for row in ("Binary", "Ternary", "LBQ (5)"):  # the same networks, counted
        for entry in cost_entries(row):
            yield "a", entry, row, study_recipe(COSTS[row])
    yield "a", "energy/ANN", "ANN", study_recipe(ABLATION["ANN"])


def _levels() -> Iterator[_PocketRow]:
    for n in (1, 2, 5, 10, 20):
        recipe = study_recipe(replace(LBQ, max_level=n))
        for entry in cost_entries(f"LBQ ({n})"):
            yield "b", entry, f"LBQ ({n})", recipe


def _timesteps() -> Iterator[_PocketRow]:
    like = pocket_science()
    for t in (1, 2, 4):
        recipe = replace(like, model=replace(like.model, timesteps=t))
        yield "c", f"CIFAR-10/ResNet-20/LBQ/T={t}", f"LBQ, T={t}", recipe


def _open_points() -> Iterator[_PocketRow]:
    like = pocket_science()
    references = dict(zip(OPEN_POINTS, ("LBQ/learnable", "V2/fixed", "V3/learnable"), strict=True))
    for reference, choices in OPEN_POINTS.items():
        yield "d", f"open/{reference}", reference, study_recipe(ABLATION[references[reference]])
        for method, neuron in choices.items():
            recipe = study_recipe(neuron)
            if method == "step calibrated":
                recipe = replace(like, calibrate=CALIBRATION_PERCENTILE)
            yield "d", f"open/{method}", method, recipe


def _others() -> Iterator[_PocketRow]:
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


PACKAGES = ("functional", "kernels", "neurons", "models", "data", "train")
"""The packages that decide a trained network's numbers; the others only observe or print."""

NATIVE = ("include/lbq.h", "src", "torch")
"""The parts of ``native/`` that training runs on; the rest reads and runs trained networks."""

NAMES_ONLY = "train/recipes.py"
"""Gives recipes names; the content of a recipe is hashed with the recipe itself."""


@cache
def numerics_digest() -> str:
    """Return the SHA-256 of every file that decides what a recipe computes, committed or not."""
    package = Path(lbq.__file__).parent
    return digest_of(package, package.parents[1] / "native")


def digest_of(package: Path, native: Path) -> str:
    """Hash names and contents of the files: a moved line counts, a moved folder does not."""
    if not native.is_dir():
        raise RunError(
            f"{native} is missing: experiments are named after the sources of the kernels too; run "
            f"lbq_paper from a checkout (pip install -e .)"
        )
    found = [(f"lbq/{part}", package / part, (".py", ".json")) for part in PACKAGES]
    found += [(f"native/{part}", native / part, (".cc", ".h")) for part in NATIVE]
    total = hashlib.sha256()
    for name, folder, suffixes in found:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            entry = f"{name}/{path.relative_to(folder).as_posix()}"
            if path.suffix in suffixes and entry != f"lbq/{NAMES_ONLY}":
                total.update(entry.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
