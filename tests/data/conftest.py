"""What tests of data share: real data where it is, Pillow's operations as the truth."""

import os
from pathlib import Path

import pytest
from PIL import Image, ImageEnhance, ImageOps

GREY = (128, 128, 128)
NEAREST, BICUBIC = Image.Resampling.NEAREST, Image.Resampling.BICUBIC


@pytest.fixture(scope="session")
def real_data():
    if "LBQ_DATA" not in os.environ:
        pytest.skip("LBQ_DATA is not set: no real data to read")
    return Path(os.environ["LBQ_DATA"])


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache that the tests of a session share, so that a set is packed once."""
    return tmp_path_factory.mktemp("cache")


def affine(image, *matrix, resample):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=GREY)


def turn(image, degrees):  # as the published recipe writes it
    turned = image.convert("RGBA").rotate(degrees)
    backdrop = Image.new("RGBA", turned.size, (128,) * 4)
    return Image.composite(turned, backdrop, turned).convert("RGB")


@pytest.fixture(scope="session")
def by_pillow():
    """Every operation of ``pixels.py`` as Pillow does it, on one image."""
    return {
        "shear_x": lambda im, m: affine(im, 1, m, 0, 0, 1, 0, resample=BICUBIC),
        "shear_y": lambda im, m: affine(im, 1, 0, 0, m, 1, 0, resample=BICUBIC),
        "translate_x": lambda im, m: affine(im, 1, 0, m * im.width, 0, 1, 0, resample=NEAREST),
        "translate_y": lambda im, m: affine(im, 1, 0, 0, 0, 1, m * im.height, resample=NEAREST),
        "rotate": turn,
        "color": lambda im, m: ImageEnhance.Color(im).enhance(m),
        "posterize": lambda im, m: ImageOps.posterize(im, int(m)),
        "solarize": ImageOps.solarize,
        "contrast": lambda im, m: ImageEnhance.Contrast(im).enhance(m),
        "sharpness": lambda im, m: ImageEnhance.Sharpness(im).enhance(m),
        "brightness": lambda im, m: ImageEnhance.Brightness(im).enhance(m),
        "autocontrast": lambda im, m: ImageOps.autocontrast(im),
        "equalize": lambda im, m: ImageOps.equalize(im),
        "invert": lambda im, m: ImageOps.invert(im),
    }
