from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lbq import data as data_room
from lbq.cli.samples import count_answers, open_samples, origin_recipe, sample_batches
from lbq.config_io import to_document
from lbq.data import DataConfig, open_data
from lbq.errors import FormatError

CACHE = Path("/nonexistent")
IMAGES = DataConfig(source="synthetic", size=8, limit=64, limit_test=30)
CLIPS = DataConfig(source="synthetic", kind="nmnist", size=8, timesteps=3, limit_test=30)


@pytest.mark.parametrize("config", [IMAGES, CLIPS], ids=["images", "clips"])
def test_real_samples_are_those_that_training_evaluates_on(config):
    data = open_data(config, CACHE)
    for samples, batch in zip(
        sample_batches(data, batch=16), data_room.eval_batches(data, batch=16), strict=True
    ):
        assert torch.equal(samples.real, batch.x)
        assert torch.equal(samples.target, batch.target)


def test_raw_samples_are_the_bytes_behind_them():
    data = open_data(IMAGES, CACHE)
    normalization = data.config.augment.normalization
    mean, std = (
        torch.tensor(v, dtype=torch.float64).reshape(3, 1, 1)
        for v in (normalization.mean, normalization.std)
    )
    for samples in sample_batches(data, batch=16):
        assert torch.equal(((samples.real * std + mean) * 255).round().to(torch.uint8), samples.raw)
    clips = next(iter(sample_batches(open_data(CLIPS, CACHE), batch=4)))
    assert clips.raw.shape == clips.real.shape == (3, 4, 2, 8, 8)
    assert torch.equal(clips.raw.float(), clips.real.clamp(max=255))


def test_right_answers_are_counted_over_all_samples_or_some():
    data = open_data(IMAGES, CACHE)
    labels = torch.from_numpy(data.splits.test.labels)
    share = int((labels == 0).sum())

    def always_zero(x):
        assert x.dtype == torch.uint8
        return torch.eye(10)[torch.zeros(len(x), dtype=torch.long)]

    found = count_answers(always_zero, data, is_integer=True, batch=7)
    assert (found.correct, found.count) == (share, 30)
    assert count_answers(always_zero, data, is_integer=True, batch=7, limit=9).count == 9


def test_the_recipe_is_found_in_the_origin_or_missed_by_name(tiny):
    recipe = tiny.tiny_recipe()
    assert origin_recipe({"recipe": to_document(recipe)}, source=Path("net.lbq")) == recipe
    with pytest.raises(FormatError, match=r"net\.lbq does not store the recipe"):
        origin_recipe({}, source=Path("net.lbq"))


def test_the_same_data_may_lie_elsewhere(tiny):
    recipe = tiny.tiny_recipe()
    moved = replace(recipe, data=replace(recipe.data, source="nowhere"))
    assert open_samples(moved, source="synthetic", cache=CACHE).num_test == 30
