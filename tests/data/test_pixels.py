"""Every operation against Pillow, pixel by pixel."""

import numpy as np
import pytest
from PIL import Image

from lbq.data import pixels

ENHANCED = [0.1, 0.37, 0.9, 1.0, 1.1, 1.63, 1.9]
SLOPES = [-0.3, -0.2 / 3, 0.0, 0.1, 0.3]
MOVES = [-150 / 331, -0.05, 0.0, 0.01, 0.31, 150 / 331]
MAGNITUDES = {
    "shear_x": SLOPES,
    "shear_y": SLOPES,
    "translate_x": MOVES,
    "translate_y": MOVES,
    "rotate": [0.0, 20 / 3, 10.0, 29.9, 30.0],
    "color": ENHANCED,
    "posterize": [4.0, 5.0, 6.0, 7.0, 8.0],
    "solarize": [0.0, 28.4, 128.0, 199.1, 256.0],
    "contrast": ENHANCED,
    "sharpness": ENHANCED,
    "brightness": ENHANCED,
    "autocontrast": [0.0],
    "equalize": [0.0],
    "invert": [0.0],
}


def photographs(height, width):
    """Noise, gradients, dark, smooth and flat images, and one of two levels: ``[B, 3, H, W]``."""
    generator = np.random.default_rng(3)
    noise = generator.integers(0, 256, (3, height, width))
    ramp = np.linspace(20, 235, height * width).reshape(height, width).astype(int)
    dark = generator.integers(0, 30, (3, height, width))
    smooth = (np.cumsum(generator.normal(0, 9, (3, height, width)), axis=2) + 120).clip(0, 255)
    flat = np.full((3, height, width), 77)
    two = np.where(noise > 127, 200, 40)
    images = [noise, np.stack([ramp, ramp[::-1], ramp[:, ::-1]]), dark, smooth, flat, two]
    return np.stack(images).astype(np.uint8)


def test_there_is_a_truth_for_every_operation(by_pillow):
    assert set(by_pillow) == set(pixels.OPERATIONS) == set(MAGNITUDES)


@pytest.mark.parametrize("size", [(32, 32), (20, 33)])
@pytest.mark.parametrize("name", MAGNITUDES)
def test_an_operation_gives_the_pixels_that_pillow_gives(by_pillow, name, size):
    images = photographs(*size)
    for magnitude in MAGNITUDES[name]:
        ours = pixels.OPERATIONS[name](images, np.full(len(images), magnitude))
        for image, our in zip(images, ours, strict=True):
            theirs = by_pillow[name](Image.fromarray(image.transpose(1, 2, 0)), magnitude)
            assert np.array_equal(np.asarray(theirs).transpose(2, 0, 1), our), magnitude


@pytest.mark.parametrize("name", MAGNITUDES)
def test_every_image_of_a_batch_has_its_own_magnitude(name):
    images = photographs(32, 32)
    magnitudes = np.resize(MAGNITUDES[name], len(images))
    together = pixels.OPERATIONS[name](images, magnitudes)
    alone = [
        pixels.OPERATIONS[name](images[i : i + 1], magnitudes[i : i + 1])
        for i in range(len(images))
    ]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("name", MAGNITUDES)
def test_an_operation_leaves_its_input_alone(name):
    images = photographs(32, 32)
    before = images.copy()
    pixels.OPERATIONS[name](images, np.full(len(images), MAGNITUDES[name][-1]))
    assert np.array_equal(images, before)
