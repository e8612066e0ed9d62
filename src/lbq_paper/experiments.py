"""An experiment: one recipe and seed whose measurement fills entries in the paper's tables.

Entries are addresses: ``CIFAR-10/ResNet-20/LBQ/T=2``, ``ablation/V1/fixed`` and ``energy/LBQ (5)``
are rows of the paper, named as :mod:`lbq_paper.tables_as_printed` names them; ``open/...`` are
questions that it leaves open.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Literal

from lbq.config_io import Document, digest, to_document
from lbq.train import Recipe
from lbq_paper.numerics import numerics_digest

Size = Literal["full", "pocket"]
"""The paper's networks and schedules, or small ones for two CPU cores."""

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
    """Say in which table an address lies."""
    return _TABLES[entry.partition("/")[0]]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What to run, and where its numbers go."""

    entries: tuple[str, ...]
    """Addresses that it fills."""
    method: str
    """What people call the neuron and its choices."""
    recipe: Recipe
    """What is computed, its seed included."""
    size: Size
    """Which of the two columns of a table it fills."""
    groups: tuple[str, ...] = ()
    """Of small experiments: a ablation, b levels, c timesteps, d open points, e others."""

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
        """The SHA-256 of what it computes, whatever the code."""
        return recipe_key(self.recipe)

    @cached_property
    def id(self) -> str:
        """A short name of recipe, seed and numerics: other weights need another id.

        What counts and measures them is not in it; a record says at which commit that was done.
        """
        return digest({"recipe": self.key, "numerics": numerics_digest()})[:_ID_DIGITS]


def published(recipe: Recipe) -> Document:
    """Return a recipe as a document that names its data, but not where they lie."""
    name = PurePath(recipe.data.source).name
    return to_document(replace(recipe, data=replace(recipe.data, source=name)))


def recipe_key(recipe: Recipe) -> str:
    """Return the SHA-256 of a recipe without the folder of its data and the name it goes by."""
    document = published(recipe)
    del document["name"]
    return digest(document)


def merged(experiments: Iterable[Experiment]) -> tuple[Experiment, ...]:
    """Join experiments that compute the same: what fills several entries is run once."""
    found: dict[str, Experiment] = {}
    for experiment in experiments:
        before = found.setdefault(experiment.key, experiment)
        assert before.size == experiment.size
        entries = tuple(dict.fromkeys(before.entries + experiment.entries))
        groups = tuple(dict.fromkeys(before.groups + experiment.groups))
        found[experiment.key] = replace(before, entries=entries, groups=groups)
    return tuple(found.values())


def in_order(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Put the first seed of everything first: an interrupted study has looked everywhere once."""
    return sorted(experiments, key=lambda experiment: experiment.seed)


def chosen(
    experiments: Sequence[Experiment],
    *,
    ids: Sequence[str] = (),
    table: Table | None = None,
    groups: Sequence[str] = (),
) -> list[Experiment]:
    """Choose by the beginnings of ids, by table and by group; all of them if nothing is said."""
    return in_order(
        experiment
        for experiment in experiments
        if (not ids or any(experiment.id.startswith(each) for each in ids))
        and (table is None or table in experiment.tables)
        and (not groups or set(groups) & set(experiment.groups))
    )
