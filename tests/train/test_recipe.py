import json
from dataclasses import replace

import pytest
import torch

from lbq.data import DataConfig
from lbq.errors import RecipeError
from lbq.train.model_config import build_network
from lbq.train.recipe import read_recipe, recipe_from_document, write_recipe
from lbq.train.recipes import RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_a_file(name, tmp_path):
    recipe = RECIPES[name]()
    path = tmp_path / "recipe.json"
    path.write_text(write_recipe(recipe))
    assert read_recipe(path) == recipe
    assert read_recipe(path).digest() == recipe.digest()


def test_any_change_changes_the_digest():
    recipe = RECIPES["pocket"]()
    others = [
        replace(recipe, seed=43),
        replace(recipe, optim=replace(recipe.optim, lr=0.3)),
        replace(recipe, data=replace(recipe.data, source="elsewhere")),
    ]
    assert len({each.digest() for each in (recipe, *others)}) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"deterministic": "canonical", "accumulate": 2}, "leave accumulate at 1"),
        ({"deterministic": "canonical", "shards": 3}, "cannot be split into 3 equal shards"),
        (
            {"data": DataConfig(source="x", kind="nmnist", timesteps=5)},
            "split into 5 frames, but the network runs for 2 timesteps",
        ),
    ],
)
def test_contradictions_are_refused(tiny, changes, words):
    with pytest.raises(RecipeError, match=words):
        tiny.tiny_recipe(**changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not strict JSON"),
        ("[" * 10_000, "is not strict JSON"),
        ("{}", r"Recipe lacks .*name"),
        ('{"_target_": "os.system"}', "no field _target_"),
        ('{"name": 3}', r"lacks .*data"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, words):
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=words):
        read_recipe(path)


def test_a_missing_file_is_a_mistake_that_is_explained(tmp_path):
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        read_recipe(tmp_path / "recipe.json")


@pytest.mark.parametrize(
    "change",
    [{"model": "os.system"}, {"loss": "os.system"}, {"data": {"kind": "os"}}, {"batch": "1 + 1"}],
)
def test_no_field_of_a_recipe_can_name_code(change):
    document = json.loads(write_recipe(RECIPES["pocket"]()))
    with pytest.raises(RecipeError):
        recipe_from_document(document | change)


def test_the_two_cifar_recipes_cut_out_as_printed():
    lengths = [RECIPES[f"cifar{n}-resnet20"]().data.augment.cutout for n in (10, 100)]
    assert lengths == [16, 12]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_filed_under_its_name_and_can_be_built(name):
    recipe = RECIPES[name]()
    assert recipe.name == name
    with torch.device("meta"):
        model = build_network(recipe.model, num_classes=10)
    assert any(True for _ in model.parameters())
    recipe.check_world_size(1)


def test_the_twin_of_the_pocket_recipe_differs_in_its_neuron_alone():
    spiking, twin = RECIPES["pocket"](), RECIPES["pocket-ann"]()
    assert (twin.model.neuron.kind, twin.model.timesteps) == ("relu", 1)
    for name in ("data", "epochs", "batch", "optim", "schedule", "precision", "seed"):
        assert getattr(spiking, name) == getattr(twin, name)


@pytest.mark.parametrize("name", RECIPES)
def test_named_recipes_take_the_precision_of_the_machine(name):
    assert RECIPES[name]().precision == "auto"
