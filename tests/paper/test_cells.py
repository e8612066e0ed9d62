from collections import Counter
from dataclasses import replace

import pytest
import torch

from lbq.neurons import BurstLIF, MultiLevelLIF, named_neurons
from lbq.train import build_network, read_recipe, write_recipe
from lbq_paper import cells as cells_module
from lbq_paper.cells import Cell, chosen, in_order, merged, published, recipe_key, table_of
from lbq_paper.full_size import ABLATION, COSTS, full_size_cells
from lbq_paper.pocket_size import pocket_cells, pocket_science
from lbq_paper.tables_as_printed import ACCURACY, printed_cells

FULL, POCKET = full_size_cells(), pocket_cells()
NUM_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet-1k": 1000, "dvs-gesture": 11}


@pytest.fixture
def cell():
    return Cell(places=("open/x",), method="x", recipe=pocket_science(), size="pocket")


# -- ids -----------------------------------------------------------------------------------------


def test_an_id_names_recipe_seed_and_numerics_and_nothing_else(cell, monkeypatch):
    recipe = cell.recipe
    moved = replace(recipe, data=replace(recipe.data, source="/elsewhere/cifar10"))
    renamed = replace(recipe, name="other")
    for same in (moved, renamed):
        assert replace(cell, recipe=same, places=("open/y",), method="y").id == cell.id
    other_data = replace(recipe, data=replace(recipe.data, source="uoft-cs/cifar100"))
    for other in (replace(recipe, seed=7), replace(recipe, epochs=3), other_data):
        assert replace(cell, recipe=other).id != cell.id
    before = cell.id
    monkeypatch.setattr(cells_module, "numerics_digest", lambda: "other code")
    assert replace(cell).id != before
    assert replace(cell).key == cell.key


def test_a_published_recipe_has_no_path(cell):
    recipe = cell.recipe
    moved = replace(recipe, data=replace(recipe.data, source="/home/somebody/cifar10"))
    assert published(moved)["data"]["source"] == "cifar10"
    assert "/" not in str(published(moved))


def test_cells_that_compute_the_same_are_one_cell(cell):
    twin = replace(cell, places=("open/y", "open/x"), groups=("d",))
    other = replace(cell, recipe=replace(cell.recipe, seed=5))
    assert [c.places for c in merged([cell, twin, other])] == [("open/x", "open/y"), ("open/x",)]


@pytest.mark.parametrize("cells", [FULL, POCKET], ids=["full", "pocket"])
def test_every_id_is_there_once(cells):
    assert len({cell.id for cell in cells}) == len(cells)
    assert len({cell.key for cell in cells}) == len(cells)


def test_keys_are_those_of_the_recipes_after_a_round_trip(tmp_path):
    for cell in (*FULL[::9], *POCKET[::9]):
        (tmp_path / "recipe.json").write_text(write_recipe(cell.recipe))
        assert recipe_key(read_recipe(tmp_path / "recipe.json")) == cell.key


# -- full size -----------------------------------------------------------------------------------


def places(cells):
    return {place for cell in cells for place in cell.places}


def test_every_row_of_the_papers_own_has_cells():
    ours = {claim.cell for claim in ACCURACY if claim.origin != "quoted"}
    ours |= {cell for cell in printed_cells() if cell.startswith("ablation/")}
    ours |= {f"{kind}/{row}" for row in COSTS for kind in ("accumulation", "energy")}
    assert ours | {"energy/ANN"} <= places(FULL)


def test_what_fills_several_tables_is_one_cell():
    lbq = next(c for c in FULL if "ablation/LBQ/learnable" in c.places and c.seed == 0)
    also = {"CIFAR-10/ResNet-20/LBQ/T=2", "accumulation/LBQ (5)", "energy/LBQ (5)"}
    assert also <= set(lbq.places)
    assert lbq.tables == ("2", "5", "6", "7")


@pytest.mark.parametrize("cell", [c for c in FULL if c.seed == 0], ids=lambda c: c.places[0])
def test_every_full_size_cell_builds_its_network(cell):
    source = cell.recipe.data.source.rpartition("/")[2]
    with torch.device("meta"):
        model = build_network(cell.recipe.model, num_classes=NUM_CLASSES.get(source, 10))
    timesteps = int(cell.places[0].rpartition("T=")[2]) if "T=" in cell.places[0] else None
    assert timesteps in (None, cell.recipe.model.timesteps)
    if "ResNet-20" in cell.places[0] and source == "cifar10":
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(17_289_866, rel=1e-4)


@pytest.mark.parametrize("claim", [c for c in ACCURACY if c.cell in places(FULL)], ids=str)
def test_rows_of_tables_2_to_4_are_built_as_they_say(claim):
    cell = next(c for c in FULL if claim.cell in c.places)
    assert table_of(claim.cell) == str(claim.table)
    assert cell.recipe.model.name == claim.architecture.lower().replace("-", "")
    assert cell.recipe.model.timesteps == claim.timesteps


# -- pocket size ---------------------------------------------------------------------------------


def test_small_cells_differ_from_one_recipe_in_what_they_ask_only():
    base = pocket_science()
    for cell in POCKET:
        model = replace(cell.recipe.model, neuron=base.model.neuron, timesteps=2)
        like = replace(cell.recipe, seed=base.seed, model=model, calibrate=None, compile=False)
        assert like == base, cell.method


def test_small_cells_are_compiled_where_their_neurons_have_no_kernel():
    for cell in POCKET:
        network = build_network(cell.recipe.model, num_classes=10)
        others = (BurstLIF, MultiLevelLIF)  # a kernel, and what torch compiles wrongly: docs/log.md
        loops = [n for _, n in named_neurons(network) if not isinstance(n, others)]
        assert cell.recipe.compile == bool(loops), cell.method


def test_the_groups_have_the_cells_that_were_planned():
    counts = Counter(group for cell in POCKET for group in cell.groups)
    assert counts == {"a": 24, "b": 11, "c": 7, "d": 33, "e": 8}
    assert {c.seed for c in POCKET if "a" in c.groups} == {0, 1, 2}
    assert {f"ablation/{row}" for row in ABLATION} <= places(POCKET)


def test_small_networks_are_small():
    model = build_network(pocket_science().model, num_classes=10)
    assert [len(stage) for stage in model.stages] == [1, 1, 1]
    assert sum(p.numel() for p in model.parameters()) < 400_000


# -- choosing ------------------------------------------------------------------------------------


def test_the_first_seed_of_everything_comes_first():
    seeds = [cell.seed for cell in in_order(POCKET)]
    assert seeds == sorted(seeds)
    assert set(in_order(POCKET)) == set(POCKET)


def test_cells_are_chosen_by_id_table_and_group():
    assert chosen(POCKET) == in_order(POCKET)
    some = POCKET[5]
    assert chosen(POCKET, ids=[some.id[:8]]) == [some]
    assert all("c" in cell.groups for cell in chosen(POCKET, groups=["c"]))
    assert len(chosen(POCKET, groups=["c"])) == 7
    assert {c.method for c in chosen(FULL, table="3")} == {"LBQ", "LM-HT (L=2)", "Ternary Spike"}
