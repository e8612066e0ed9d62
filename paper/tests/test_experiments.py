from collections import Counter
from dataclasses import replace

import pytest
import torch

from lbq.neurons import BurstLIF, MultiLevelLIF, named_neurons
from lbq.train import build_network, read_recipe, write_recipe
from lbq_paper import experiments as experiments_module
from lbq_paper.claims import ACCURACY, printed_entries
from lbq_paper.experiments import (
    ABLATION,
    COSTS,
    Experiment,
    chosen,
    full_size_experiments,
    in_order,
    merged,
    pocket_experiments,
    pocket_science,
    published,
    recipe_key,
    table_of,
)

FULL, POCKET = full_size_experiments(), pocket_experiments()
NUM_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet-1k": 1000, "dvs-gesture": 11}


@pytest.fixture
def experiment():
    return Experiment(entries=("open/x",), method="x", recipe=pocket_science(), size="pocket")


# -- ids -----------------------------------------------------------------------------------------


def test_an_id_names_recipe_seed_and_numerics_and_nothing_else(experiment, monkeypatch):
    recipe = experiment.recipe
    moved = replace(recipe, data=replace(recipe.data, source="/elsewhere/cifar10"))
    renamed = replace(recipe, name="other")
    for same in (moved, renamed):
        assert replace(experiment, recipe=same, entries=("open/y",), method="y").id == experiment.id
    other_data = replace(recipe, data=replace(recipe.data, source="uoft-cs/cifar100"))
    for other in (replace(recipe, seed=7), replace(recipe, epochs=3), other_data):
        assert replace(experiment, recipe=other).id != experiment.id
    before = experiment.id
    monkeypatch.setattr(experiments_module, "numerics_digest", lambda: "other code")
    assert replace(experiment).id != before
    assert replace(experiment).key == experiment.key


def test_a_published_recipe_has_no_path(experiment):
    recipe = experiment.recipe
    moved = replace(recipe, data=replace(recipe.data, source="/home/somebody/cifar10"))
    assert published(moved)["data"]["source"] == "cifar10"
    assert "/" not in str(published(moved))


def test_experiments_that_compute_the_same_are_one_experiment(experiment):
    twin = replace(experiment, entries=("open/y", "open/x"), groups=("d",))
    other = replace(experiment, recipe=replace(experiment.recipe, seed=5))
    assert [c.entries for c in merged([experiment, twin, other])] == [
        ("open/x", "open/y"),
        ("open/x",),
    ]


@pytest.mark.parametrize("experiments", [FULL, POCKET], ids=["full", "pocket"])
def test_every_id_is_there_once(experiments):
    assert len({experiment.id for experiment in experiments}) == len(experiments)
    assert len({experiment.key for experiment in experiments}) == len(experiments)


def test_keys_are_those_of_the_recipes_after_a_round_trip(tmp_path):
    for experiment in (*FULL[::9], *POCKET[::9]):
        (tmp_path / "recipe.json").write_text(write_recipe(experiment.recipe))
        assert recipe_key(read_recipe(tmp_path / "recipe.json")) == experiment.key


# -- full size -----------------------------------------------------------------------------------


def entries(experiments):
    return {entry for experiment in experiments for entry in experiment.entries}


def test_every_row_of_the_papers_own_has_experiments():
    ours = {claim.entry for claim in ACCURACY if claim.origin != "quoted"}
    ours |= {entry for entry in printed_entries() if entry.startswith("ablation/")}
    ours |= {f"{kind}/{row}" for row in COSTS for kind in ("accumulation", "energy")}
    assert ours | {"energy/ANN"} <= entries(FULL)


def test_what_fills_several_tables_is_one_experiment():
    lbq = next(c for c in FULL if "ablation/LBQ/learnable" in c.entries and c.seed == 0)
    also = {"CIFAR-10/ResNet-20/LBQ/T=2", "accumulation/LBQ (5)", "energy/LBQ (5)"}
    assert also <= set(lbq.entries)
    assert lbq.tables == ("2", "5", "6", "7")


@pytest.mark.parametrize("experiment", [c for c in FULL if c.seed == 0], ids=lambda c: c.entries[0])
def test_every_full_size_experiment_builds_its_network(experiment):
    source = experiment.recipe.data.source.rpartition("/")[2]
    with torch.device("meta"):
        model = build_network(experiment.recipe.model, num_classes=NUM_CLASSES.get(source, 10))
    timesteps = (
        int(experiment.entries[0].rpartition("T=")[2]) if "T=" in experiment.entries[0] else None
    )
    assert timesteps in (None, experiment.recipe.model.timesteps)
    if "ResNet-20" in experiment.entries[0] and source == "cifar10":
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(17_289_866, rel=1e-4)


@pytest.mark.parametrize("claim", [c for c in ACCURACY if c.entry in entries(FULL)], ids=str)
def test_rows_of_tables_2_to_4_are_built_as_they_say(claim):
    experiment = next(c for c in FULL if claim.entry in c.entries)
    assert table_of(claim.entry) == str(claim.table)
    assert experiment.recipe.model.name == claim.architecture.lower().replace("-", "")
    assert experiment.recipe.model.timesteps == claim.timesteps


# -- pocket size ---------------------------------------------------------------------------------


def test_small_experiments_differ_from_one_recipe_in_what_they_ask_only():
    base = pocket_science()
    for experiment in POCKET:
        model = replace(experiment.recipe.model, neuron=base.model.neuron, timesteps=2)
        like = replace(
            experiment.recipe, seed=base.seed, model=model, calibrate=None, compile=False
        )
        assert like == base, experiment.method


def test_small_experiments_are_compiled_where_their_neurons_have_no_kernel():
    for experiment in POCKET:
        network = build_network(experiment.recipe.model, num_classes=10)
        others = (BurstLIF, MultiLevelLIF)  # a kernel, and what torch compiles wrongly: docs/log.md
        loops = [n for _, n in named_neurons(network) if not isinstance(n, others)]
        assert experiment.recipe.compile == bool(loops), experiment.method


def test_the_groups_have_the_experiments_that_were_planned():
    counts = Counter(group for experiment in POCKET for group in experiment.groups)
    assert counts == {"a": 24, "b": 11, "c": 7, "d": 33, "e": 8}
    assert {c.seed for c in POCKET if "a" in c.groups} == {0, 1, 2}
    assert {f"ablation/{row}" for row in ABLATION} <= entries(POCKET)


def test_small_networks_are_small():
    model = build_network(pocket_science().model, num_classes=10)
    assert [len(stage) for stage in model.stages] == [1, 1, 1]
    assert sum(p.numel() for p in model.parameters()) < 400_000


# -- choosing ------------------------------------------------------------------------------------


def test_the_first_seed_of_everything_comes_first():
    seeds = [experiment.seed for experiment in in_order(POCKET)]
    assert seeds == sorted(seeds)
    assert set(in_order(POCKET)) == set(POCKET)


def test_experiments_are_chosen_by_id_table_and_group():
    assert chosen(POCKET) == in_order(POCKET)
    some = POCKET[5]
    assert chosen(POCKET, ids=[some.id[:8]]) == [some]
    assert all("c" in experiment.groups for experiment in chosen(POCKET, groups=["c"]))
    assert len(chosen(POCKET, groups=["c"])) == 7
    assert {c.method for c in chosen(FULL, table="3")} == {"LBQ", "LM-HT (L=2)", "Ternary Spike"}
