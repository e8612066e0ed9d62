"""Augmentation of images, Mixup and CutMix."""

import numpy as np
import pytest
import torch

from lbq.data import augment
from lbq.data.augment import CIFAR10, CIFAR100, IMAGENET, UNIT, AugmentConfig, Mix, MixConfig
from lbq.errors import ParameterError

IMAGES = np.random.default_rng(0).integers(1, 256, (400, 3, 32, 32), dtype=np.uint8)


def vary(images=IMAGES, *, start=0, seed=0, **config):
    config = AugmentConfig(normalization=UNIT, **config)
    varied = augment.augment_images(images, config, seed=seed, epoch=0, start=start)
    return augment.normalize(varied, UNIT)


def as_bytes(values):
    return np.round(255 * values).astype(np.uint8)


@pytest.mark.parametrize("normalization", [CIFAR10, CIFAR100, IMAGENET])
def test_normalising_is_that_of_the_recipe(normalization):
    ours = augment.normalize(IMAGES, normalization)
    mean, std = (
        torch.tensor(part).view(3, 1, 1) for part in (normalization.mean, normalization.std)
    )
    theirs = (torch.from_numpy(IMAGES).float() / 255 - mean) / std
    assert torch.allclose(torch.from_numpy(ours), theirs, atol=1e-6)


def test_nothing_but_normalising_happens_unless_asked():
    assert np.array_equal(as_bytes(vary()), IMAGES)


def test_a_crop_is_a_window_of_the_image_with_a_black_border():
    cropped = as_bytes(vary(crop="pad"))
    seen = set()
    for image, out in zip(IMAGES, cropped, strict=True):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
        windows = {(y, x): padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)}
        places = [place for place, window in windows.items() if np.array_equal(window, out)]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) > 75  # of 81 places, with 400 images


def test_half_of_the_images_are_mirrored():
    flipped = as_bytes(vary(flip=True))
    is_mirrored = [
        np.array_equal(out, im[:, :, ::-1]) for im, out in zip(IMAGES, flipped, strict=True)
    ]
    is_same = [np.array_equal(out, im) for im, out in zip(IMAGES, flipped, strict=True)]
    assert sum(is_mirrored) + sum(is_same) == len(IMAGES)
    assert sum(is_mirrored) == pytest.approx(200, abs=50)


def test_cutout_comes_after_normalising_and_leaves_a_clipped_square_of_zeros():
    config = AugmentConfig(cutout=16)
    values = augment.augment_images(IMAGES, config, seed=0, epoch=0, start=0)
    plain = augment.normalize(IMAGES, CIFAR10)
    centres = set()
    for value, before in zip(values, plain, strict=True):
        rows, columns = np.nonzero((value == 0).all(0))
        y0, y1, x0, x1 = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        assert (value[:, y0:y1, x0:x1] == 0).all()
        outside = np.ones((32, 32), bool)
        outside[y0:y1, x0:x1] = False
        assert np.array_equal(value[:, outside], before[:, outside])
        assert y1 - y0 == 16 or y0 == 0 or y1 == 32
        assert 8 <= y1 - y0 <= 16  # the centre lies in the image
        centres.add(y1 - 8 if y0 == 0 else y0 + 8)
    assert len(centres) > 28


def test_the_policy_comes_after_crop_and_flip_and_before_cutout():
    first = as_bytes(vary(crop="pad", flip=True))
    then = as_bytes(vary(first, policy="cifar10"))
    last = vary(then, cutout=16)
    assert np.array_equal(vary(crop="pad", flip=True, policy="cifar10", cutout=16), last)


@pytest.mark.parametrize(
    "config", [{"crop": "pad", "flip": True}, {"policy": "cifar10", "cutout": 16}]
)
def test_an_image_is_varied_the_same_whatever_batch_it_is_in(config):
    whole = vary(**config)
    for start, stop in [(0, 1), (1, 9), (9, 73), (73, 400)]:
        assert np.array_equal(vary(IMAGES[start:stop], start=start, **config), whole[start:stop])


def test_another_seed_varies_otherwise():
    assert not np.array_equal(vary(crop="pad"), vary(crop="pad", seed=1))


def test_impossible_settings_are_refused():
    with pytest.raises(ParameterError, match="cutout must be at least 0"):
        AugmentConfig(cutout=-1)
    with pytest.raises(ParameterError, match="area must be above 0 and at most 1"):
        AugmentConfig(area=(0.5, 1.5))


def choose(config, steps=2000, size=(32, 32)):
    return [
        augment.choose_mix(config, seed=0, epoch=0, step=step, size=size) for step in range(steps)
    ]


def pictures(count=6):
    return np.random.default_rng(0).normal(size=(count, 3, 8, 8)).astype(np.float32)


def test_mixup_blends_neighbours():
    values = pictures()
    mixed = values.copy()
    augment.mix_pairs(mixed, Mix(0.7))
    partners = values.reshape(3, 2, 3, 8, 8)[:, ::-1].reshape(values.shape)
    assert np.allclose(mixed, 0.7 * values + 0.3 * partners, atol=1e-6)


def test_cutmix_swaps_a_box_between_neighbours():
    values = pictures()
    mixed = values.copy()
    augment.mix_pairs(mixed, Mix(0.75, (slice(2, 6), slice(0, 4))))
    expected = values.copy()
    expected[0::2, :, 2:6, 0:4] = values[1::2, :, 2:6, 0:4]
    expected[1::2, :, 2:6, 0:4] = values[0::2, :, 2:6, 0:4]
    assert np.array_equal(mixed, expected)


@pytest.mark.parametrize("mix", [Mix(0.6), Mix(0.5, (slice(0, 8), slice(0, 4))), Mix(1.0)])
def test_a_sample_without_neighbour_stays_as_it_is(mix):
    values = pictures(5)
    mixed = values.copy()
    augment.mix_pairs(mixed, mix)
    assert np.array_equal(mixed[4], values[4])


def test_the_share_of_a_target_is_the_share_of_the_pixels():
    for mix in choose(MixConfig(cutmix=1.0), steps=50, size=(20, 28)):
        ones = np.zeros((2, 1, 20, 28), np.float32)
        ones[0] = 1
        augment.mix_pairs(ones, mix)
        targets = augment.soft_targets(np.array([0, 1]), mix.kept, 2)
        assert ones[0].mean() == pytest.approx(targets[0, 0], abs=1e-6)
        assert ones[1].mean() == pytest.approx(targets[1, 0], abs=1e-6)


def test_targets_sum_to_one_also_for_partners_of_the_same_class():
    targets = augment.soft_targets(np.array([3, 3, 0, 2, 1]), 0.3, 4)
    assert np.allclose(targets.sum(1), 1)
    assert targets[0].tolist() == [0, 0, 0, 1]
    assert targets[2] == pytest.approx([0.3, 0, 0.7, 0])
    assert targets[4].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 1.0])
def test_the_share_kept_follows_the_beta_distribution(alpha):
    kept = np.array([mix.kept for mix in choose(MixConfig(mixup=alpha))])
    variance = 1 / (4 * (2 * alpha + 1))
    assert kept.mean() == pytest.approx(0.5, abs=5 * np.sqrt(variance / len(kept)))
    assert kept.var() == pytest.approx(variance, rel=0.1)


def test_batches_are_mixed_as_often_as_said_and_both_ways_equally_often():
    mixes = choose(MixConfig(mixup=0.5, cutmix=1.0, prob=0.4))
    by_box = sum(mix.box is not None for mix in mixes)
    by_blend = sum(mix.box is None and mix.kept < 1 for mix in mixes)
    assert by_box == pytest.approx(400, abs=5 * np.sqrt(400))
    assert by_blend == pytest.approx(400, abs=5 * np.sqrt(400))


def test_a_box_lies_inside_and_its_centre_anywhere():
    boxes = [mix.box for mix in choose(MixConfig(cutmix=1.0), size=(20, 28))]
    assert all(0 <= y.start <= y.stop <= 20 and 0 <= x.start <= x.stop <= 28 for y, x in boxes)
    assert {y.start for y, _ in boxes} >= {0, 10}
    assert max(x.stop for _, x in boxes) == 28


def test_nothing_is_mixed_unless_asked():
    assert not MixConfig().is_on
    assert not MixConfig(mixup=1.0, prob=0.0).is_on
    assert choose(MixConfig(), steps=3) == [Mix(1.0)] * 3


def test_what_is_no_probability_is_refused():
    with pytest.raises(ParameterError, match="mixup must be at least 0"):
        MixConfig(mixup=-0.1)
    with pytest.raises(ParameterError, match="prob must be at least 0 and at most 1"):
        MixConfig(prob=1.5)
