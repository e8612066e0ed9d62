import numpy as np
import pytest
from PIL import Image

from lbq.data import autoaugment, sampler
from lbq.data.autoaugment import AROUND_ONE, NUM_DRAWS, POLICIES, RANGES, ROWS, SIGNED
from lbq.data.sampler import RandomStream


def random_bits(count, seed=0):
    return sampler.random_bits(
        RandomStream.IMAGE, seed=seed, epoch=0, start=0, count=count, width=NUM_DRAWS
    )


def one_by_one(by_pillow, image, row, bits):
    """Apply a row with Pillow, choosing as the recipe does: if at all, and with which sign."""
    picture = Image.fromarray(image.transpose(1, 2, 0))
    for turn, (probability, operation, index) in enumerate(row):
        chance = sampler.to_uniform(bits)[1 + 2 * turn]
        sign = 1 if bits[2 + 2 * turn] % 2 else -1
        magnitude = RANGES[operation][index]
        if operation in SIGNED:
            magnitude *= sign
        if operation in AROUND_ONE:
            magnitude = 1 + sign * magnitude
        if chance < probability:
            picture = by_pillow[operation](picture, magnitude)
    return np.asarray(picture).transpose(2, 0, 1)


@pytest.mark.parametrize("name", ROWS)
def test_a_policy_is_that_of_the_recipe_image_by_image(by_pillow, name):
    images = np.random.default_rng(0).integers(0, 256, (300, 3, 32, 32), dtype=np.uint8)
    bits = random_bits(300)
    ours = POLICIES[name].apply(images, bits)
    for image, our, mine in zip(images, ours, bits, strict=True):
        row = ROWS[name][int(mine[0] % len(ROWS[name]))]
        assert np.array_equal(one_by_one(by_pillow, image, row, mine), our), row


def test_policies_have_the_published_numbers_of_rows():
    assert {name: len(rows) for name, rows in ROWS.items()} == {"cifar10": 25, "imagenet": 24}
    assert all(len(magnitudes) == 10 for magnitudes in RANGES.values())


def test_every_operation_of_a_row_has_magnitudes():
    for rows in ROWS.values():
        for row in rows:
            for probability, operation, index in row:
                assert 0 <= probability <= 1
                assert 0 <= index < len(RANGES[operation])


def test_every_row_is_chosen_equally_often():
    rows = sampler.to_integers(random_bits(25_000)[:, 0], 25)
    assert abs(np.bincount(rows) - 1000).max() < 5 * np.sqrt(1000)


def test_an_image_gets_the_same_whatever_batch_it_is_in():
    images = np.random.default_rng(1).integers(0, 256, (64, 3, 32, 32), dtype=np.uint8)
    bits = random_bits(64)
    together = autoaugment.POLICIES["cifar10"].apply(images, bits)
    apart = [autoaugment.POLICIES["cifar10"].apply(images[i::4], bits[i::4]) for i in range(4)]
    for i, part in enumerate(apart):
        assert np.array_equal(together[i::4], part)
