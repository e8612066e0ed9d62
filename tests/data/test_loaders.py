"""The door: what a run sees of its data."""

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from lbq import data
from lbq.data import AugmentConfig, DataConfig, MixConfig
from lbq.errors import ParameterError

EVERYTHING = AugmentConfig(
    crop="pad", flip=True, policy="cifar10", cutout=6, mix=MixConfig(mixup=0.8, cutmix=1.0)
)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    config = DataConfig(source="synthetic", limit=203, limit_test=57, augment=EVERYTHING)
    return data.open_data(config, tmp_path_factory.mktemp("unused"))


def epoch(opened, **options):
    options = {"seed": 1, "epoch": 0, "global_batch": 16} | options
    return list(data.train_batches(opened, **options))


def sha(batches):
    """Hash every bit of every batch."""
    found = hashlib.sha256()
    for batch in batches:
        for tensor in batch:
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def join(by_rank):
    """Put the parts of all ranks together again."""
    return [
        data.Batch(*(torch.cat(parts) for parts in zip(*step, strict=True)))
        for step in zip(*by_rank, strict=True)
    ]


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_see_the_bits_that_one_sees(synthetic, world):  # D1
    ranks = [epoch(synthetic, rank=rank, world=world) for rank in range(world)]
    assert sha(join(ranks)) == sha(epoch(synthetic))


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_workers_change_no_bit(synthetic, num_workers):  # D2
    assert sha(epoch(synthetic, num_workers=num_workers)) == sha(epoch(synthetic))


def test_the_same_seed_gives_the_same_bits_and_another_epoch_others(synthetic):  # D2
    assert sha(epoch(synthetic)) == sha(epoch(synthetic))
    others = {sha(epoch(synthetic, epoch=1)), sha(epoch(synthetic, seed=2)), sha(epoch(synthetic))}
    assert len(others) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_goes_on_where_it_stopped(synthetic, num_workers):
    whole = epoch(synthetic)
    rest = epoch(synthetic, start_step=5, num_workers=num_workers)
    assert sha(rest) == sha(whole[5:])


def test_another_global_batch_trains_on_the_same_order(synthetic):
    plain = dataclasses.replace(
        synthetic, config=dataclasses.replace(synthetic.config, augment=AugmentConfig(flip=True))
    )
    small, large = (epoch(plain, global_batch=size) for size in (8, 32))
    assert torch.equal(torch.cat([b.x for b in small])[:192], torch.cat([b.x for b in large]))


def test_the_last_incomplete_batch_is_dropped(synthetic):
    assert data.steps_per_epoch(synthetic, 16) == 12
    batches = epoch(synthetic)
    assert len(batches) == 12
    index = torch.cat([batch.index for batch in batches])
    assert len(index.unique()) == len(index) == 192


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_counts_every_sample_once(tmp_path, world, num_workers):  # D6
    config = DataConfig(source="synthetic", size=4, limit=16, limit_test=10_007)
    opened = data.open_data(config, tmp_path)
    ranks = [
        list(data.test_batches(opened, batch=64, rank=r, world=world, num_workers=num_workers))
        for r in range(world)
    ]
    index = torch.cat([batch.index for batches in ranks for batch in batches])
    assert torch.equal(index, torch.arange(10_007))
    target = torch.cat([batch.target for batches in ranks for batch in batches])
    assert np.array_equal(target.numpy(), opened.splits.test.labels)
    assert max(len(batch.index) for batches in ranks for batch in batches) == 64


def test_a_set_says_what_it_is(synthetic, tmp_path):
    assert (synthetic.num_train, synthetic.num_test, synthetic.num_classes) == (203, 57, 10)
    assert synthetic.sample_shape == (3, 16, 16)
    assert not synthetic.is_sequence
    clips = data.open_data(DataConfig(source="synthetic", kind="nmnist", timesteps=3), tmp_path)
    assert clips.sample_shape == (3, 2, 16, 16)
    assert clips.is_sequence
    assert epoch(clips)[0].x.shape == (3, 16, 2, 16, 16)


def test_targets_are_soft_where_samples_are_mixed(synthetic):
    assert epoch(synthetic)[0].target.shape == (16, 10)
    (first, *_) = data.test_batches(synthetic, batch=8)
    assert first.target.dtype == torch.int64


def test_real_images_are_packed_once_and_read_back(real_data, cache):
    config = DataConfig(
        source=str(real_data / "cifar10"), limit=500, limit_test=200, augment=EVERYTHING
    )
    opened = data.open_data(config, cache)
    assert opened.sample_shape == (3, 32, 32)
    assert data.open_data(config, cache).digest == opened.digest
    assert len(list((cache / "packed").iterdir())) >= 1
    assert sha(epoch(opened, num_workers=2)) == sha(epoch(opened))


def test_the_pixels_of_cifar10_have_the_known_mean_and_deviation(real_data, cache):
    config = DataConfig(
        source=str(real_data / "cifar10"),
        limit=5000,
        limit_test=100,
        augment=AugmentConfig(normalization=data.UNIT),
    )
    pixels = torch.cat([b.x for b in epoch(data.open_data(config, cache), global_batch=100)])
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.005)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx([0.2470, 0.2435, 0.2616], abs=0.005)


def test_contradictions_are_refused():
    with pytest.raises(ParameterError, match="size"):
        DataConfig(source="x", augment=AugmentConfig(crop="resized"))
    with pytest.raises(ParameterError, match="limit"):
        DataConfig(source="x", limit=0)
