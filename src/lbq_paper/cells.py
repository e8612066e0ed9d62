"""A cell: one recipe and seed whose measurement fills places in the paper's tables.

Places are addresses: ``CIFAR-10/ResNet-20/LBQ/T=2``, ``ablation/V1/fixed`` and ``energy/LBQ (5)``
are rows of the paper, named as :mod:`lbq_paper.tables_as_printed` names them; ``open/...`` are
questions that it leaves open.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Literal

from lbq.train import Recipe
from lbq.train.document import Document, digest, to_document
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


def table_of(place: str) -> Table:
    """Say in which table an address lies."""
    return _TABLES[place.partition("/")[0]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What to run, and where its numbers go."""

    places: tuple[str, ...]
    """Addresses that it fills."""
    method: str
    """What people call the neuron and its choices."""
    recipe: Recipe
    """What is computed, its seed included."""
    size: Size
    """Which of the two columns of a table it fills."""
    groups: tuple[str, ...] = ()
    """Questions of the small cells: a ablation, b levels, c timesteps, d open points, e others."""

    @property
    def seed(self) -> int:
        """The seed of its recipe."""
        return self.recipe.seed

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables in which it has a place."""
        return tuple(dict.fromkeys(table_of(place) for place in self.places))

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


def merged(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Join cells that compute the same: what fills several places is run once."""
    found: dict[str, Cell] = {}
    for cell in cells:
        before = found.setdefault(cell.key, cell)
        assert before.size == cell.size
        places = tuple(dict.fromkeys(before.places + cell.places))
        groups = tuple(dict.fromkeys(before.groups + cell.groups))
        found[cell.key] = replace(before, places=places, groups=groups)
    return tuple(found.values())


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Put the first seed of everything first: an interrupted study has looked everywhere once."""
    return sorted(cells, key=lambda cell: cell.seed)


def chosen(
    cells: Sequence[Cell],
    *,
    ids: Sequence[str] = (),
    table: Table | None = None,
    groups: Sequence[str] = (),
) -> list[Cell]:
    """Choose by the beginnings of ids, by table and by group; all of them if nothing is said."""
    return in_order(
        cell
        for cell in cells
        if (not ids or any(cell.id.startswith(each) for each in ids))
        and (table is None or table in cell.tables)
        and (not groups or set(groups) & set(cell.groups))
    )
