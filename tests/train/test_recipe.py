import json
from dataclasses import replace

import pytest

from lbq.data import DataConfig
from lbq.errors import RecipeError
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
        ({"deterministic": "canonical", "shards": 3}, "cannot be cut into 3 equal shards"),
        (
            {"data": DataConfig(source="x", kind="nmnist", timesteps=5)},
            "cut into 5 frames, but the network runs for 2 timesteps",
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
        ("{}", "Recipe lacks name"),
        ('{"_target_": "os.system"}', "no field _target_"),
        ('{"name": 3}', "lacks data"),
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
