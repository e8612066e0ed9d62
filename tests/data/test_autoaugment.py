"""AutoAugment: tables, choice of sub-policies, and the exact pixels."""

import hashlib
import sys

import numpy as np
import pytest
from PIL import Image

from lbq.data import autoaugment, sampler
from lbq.data.autoaugment import MAGNITUDES, NUM_DRAWS, SUB_POLICIES, apply_policy
from lbq.data.sampler import RandomStream
from lbq.errors import MissingExtraError

DIGESTS = {  # also of an implementation in numpy with integer arithmetic
    ("cifar10", 32, 32): "a1d44fcacf0f60bd526cb84671b73385e0d00e067e786b2f22733ee1fa29fc91",
    ("cifar10", 20, 33): "1d4b2d7e7eaf0e706d54630727f4d4a45119c66d678c2941bf070551dd6272a6",
    ("imagenet", 32, 32): "234055935f207b2ad527e95e1bc01688a3fd3c4d71f12d2e2e304eab96c7ef7d",
    ("imagenet", 20, 33): "d5c3c3a842530cdc7c45f40ca42a5e40610f4e0fad5d010a18601f701c2c113c",
}


def random_bits(count):
    return sampler.random_bits(
        RandomStream.IMAGE, seed=0, epoch=0, start=0, count=count, width=NUM_DRAWS
    )


def pictures(height, width, count=500):
    """Noise and smooth images: ``[count, 3, height, width]``."""
    generator = np.random.default_rng(7)
    shape = (count, 3, height, width)
    noise = generator.integers(0, 256, shape)
    smooth = np.cumsum(generator.normal(0, 9, shape), axis=3)
    smooth = (smooth + generator.integers(0, 256, (count, 1, 1, 1))).clip(0, 255)
    return np.where(np.arange(count)[:, None, None, None] % 3 == 0, noise, smooth).astype(np.uint8)


@pytest.mark.parametrize(("name", "height", "width"), DIGESTS)
def test_the_pixels_of_a_policy_do_not_change(name, height, width):
    images = pictures(height, width)
    before = images.copy()
    augmented = apply_policy(name, images, random_bits(len(images)))
    assert hashlib.sha256(augmented.tobytes()).hexdigest() == DIGESTS[name, height, width]
    assert np.array_equal(images, before)


@pytest.mark.parametrize(
    ("operation", "index", "sign", "expected"),
    [
        ("shear_x", 9, 0, -0.3),
        ("shear_x", 9, 1, 0.3),
        ("color", 9, 0, 1 - 0.9),
        ("color", 9, 1, 1 + 0.9),
        ("rotate", 9, 0, 30.0),
        ("posterize", 9, 1, 4.0),
    ],
)
def test_a_magnitude_has_a_sign_where_the_recipe_gives_it_one(operation, index, sign, expected):
    assert autoaugment._signed_magnitude(operation, index, sign) == pytest.approx(expected)


def test_rotation_is_the_published_composition_on_grey():
    operations, to_image = autoaugment._pillow_operations()
    image = to_image(pictures(20, 33, count=1)[0].transpose(1, 2, 0).copy())
    for degrees in (0.0, 20 / 3, 29.9, 30.0):
        turned = image.convert("RGBA").rotate(degrees)
        grey = Image.new("RGBA", turned.size, (128,) * 4)
        published = Image.composite(turned, grey, turned).convert("RGB")
        assert np.array_equal(operations["rotate"](image, degrees), np.asarray(published))


def test_policies_have_the_published_size_and_every_operation_has_ten_magnitudes():
    sizes = {name: len(policy) for name, policy in SUB_POLICIES.items()}
    assert sizes == {"cifar10": 25, "imagenet": 24}
    assert all(len(magnitudes) == 10 for magnitudes in MAGNITUDES.values())
    operations, _ = autoaugment._pillow_operations()
    assert set(operations) == set(MAGNITUDES)
    for policy in SUB_POLICIES.values():
        for probability, operation, index in (each for pair in policy for each in pair):
            assert 0 <= probability <= 1
            assert 0 <= index < len(MAGNITUDES[operation])


def test_every_sub_policy_is_chosen_equally_often():
    chosen = sampler.to_integers(random_bits(25_000)[:, 0], 25)
    assert abs(np.bincount(chosen) - 1000).max() < 5 * np.sqrt(1000)


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    autoaugment._pillow_operations.cache_clear()
    with pytest.raises(MissingExtraError, match="pip install 'datasets>=4' pillow"):
        apply_policy("cifar10", pictures(8, 8, count=1), random_bits(1))
