"""AutoAugment (Cubuk et al., 2019) by Pillow, with the policies of the published recipes.

A policy is a list of sub-policies; an image gets one of them at random. A sub-policy applies two
operations, each with a probability and an index into the operation's ten magnitudes. The tables are
those of the code that the paper follows; they differ from other implementations in signs, fill
colour and one probability (docs/decisions/0021).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from lbq.data.sampler import to_integers, to_uniform
from lbq.errors import MissingExtraError, install_command

Bytes = NDArray[np.uint8]
"""Images, ``[B, 3, H, W]``."""
Operation = tuple[float, str, int]
"""Probability, name, index of the magnitude."""
PolicyName = Literal["cifar10", "imagenet"]

NUM_DRAWS = 5
"""Random numbers per image: the sub-policy, and for both operations whether and with which sign."""
FILL = (128, 128, 128)
"""Colour of pixels from outside the image."""


def _linspace(last: float, first: float = 0.0) -> tuple[float, ...]:
    return tuple(np.linspace(first, last, 10).tolist())


MAGNITUDES: dict[str, tuple[float, ...]] = {
    "shear_x": _linspace(0.3),
    "shear_y": _linspace(0.3),
    "translate_x": _linspace(150 / 331),
    "translate_y": _linspace(150 / 331),
    "rotate": _linspace(30.0),
    "color": _linspace(0.9),
    "posterize": (8.0, 8.0, 7.0, 7.0, 6.0, 6.0, 5.0, 5.0, 4.0, 4.0),
    "solarize": _linspace(0.0, first=256.0),
    "contrast": _linspace(0.9),
    "sharpness": _linspace(0.9),
    "brightness": _linspace(0.9),
    "autocontrast": _linspace(0.0),
    "equalize": _linspace(0.0),
    "invert": _linspace(0.0),
}
"""Ten magnitudes for every operation."""

SIGNED = {"shear_x", "shear_y", "translate_x", "translate_y"}
"""The magnitude is negated half of the time."""
AROUND_ONE = {"color", "contrast", "sharpness", "brightness"}
"""The magnitude is added to 1 or taken from it, half of the time each."""

SUB_POLICIES: dict[PolicyName, tuple[tuple[Operation, Operation], ...]] = {
    "cifar10": (
        ((0.1, "invert", 7), (0.2, "contrast", 6)),
        ((0.7, "rotate", 2), (0.3, "translate_x", 9)),
        ((0.8, "sharpness", 1), (0.9, "sharpness", 3)),
        ((0.5, "shear_y", 8), (0.7, "translate_y", 9)),
        ((0.5, "autocontrast", 8), (0.9, "equalize", 2)),
        ((0.2, "shear_y", 7), (0.3, "posterize", 7)),
        ((0.4, "color", 3), (0.6, "brightness", 7)),
        ((0.3, "sharpness", 9), (0.7, "brightness", 9)),
        ((0.6, "equalize", 5), (0.5, "equalize", 1)),
        ((0.6, "contrast", 7), (0.6, "sharpness", 5)),
        ((0.7, "color", 7), (0.5, "translate_x", 8)),
        ((0.3, "equalize", 7), (0.4, "autocontrast", 8)),
        ((0.4, "translate_y", 3), (0.2, "sharpness", 6)),
        ((0.9, "brightness", 6), (0.2, "color", 8)),
        ((0.5, "solarize", 2), (0.0, "invert", 3)),
        ((0.2, "equalize", 0), (0.6, "autocontrast", 0)),
        ((0.2, "equalize", 8), (0.8, "equalize", 4)),
        ((0.9, "color", 9), (0.6, "equalize", 6)),
        ((0.8, "autocontrast", 4), (0.2, "solarize", 8)),
        ((0.1, "brightness", 3), (0.7, "color", 0)),
        ((0.4, "solarize", 5), (0.9, "autocontrast", 3)),
        ((0.9, "translate_y", 9), (0.7, "translate_y", 9)),
        ((0.9, "autocontrast", 2), (0.8, "solarize", 3)),
        ((0.8, "equalize", 8), (0.1, "invert", 3)),
        ((0.7, "translate_y", 9), (0.9, "autocontrast", 1)),
    ),
    "imagenet": (
        ((0.4, "posterize", 8), (0.6, "rotate", 9)),
        ((0.6, "solarize", 5), (0.6, "autocontrast", 5)),
        ((0.8, "equalize", 8), (0.6, "equalize", 3)),
        ((0.6, "posterize", 7), (0.6, "posterize", 6)),
        ((0.4, "equalize", 7), (0.2, "solarize", 4)),
        ((0.4, "equalize", 4), (0.8, "rotate", 8)),
        ((0.6, "solarize", 3), (0.6, "equalize", 7)),
        ((0.8, "posterize", 5), (1.0, "equalize", 2)),
        ((0.2, "rotate", 3), (0.6, "solarize", 8)),
        ((0.6, "equalize", 8), (0.4, "posterize", 6)),
        ((0.8, "rotate", 8), (0.4, "color", 0)),
        ((0.4, "rotate", 9), (0.6, "equalize", 2)),
        ((0.0, "equalize", 7), (0.8, "equalize", 8)),
        ((0.6, "invert", 4), (1.0, "equalize", 8)),
        ((0.6, "color", 4), (1.0, "contrast", 8)),
        ((0.8, "rotate", 8), (1.0, "color", 2)),
        ((0.8, "color", 8), (0.8, "solarize", 7)),
        ((0.4, "sharpness", 7), (0.6, "invert", 8)),
        ((0.6, "shear_x", 5), (1.0, "equalize", 9)),
        ((0.4, "color", 0), (0.6, "equalize", 3)),
        ((0.4, "equalize", 7), (0.2, "solarize", 4)),
        ((0.6, "solarize", 5), (0.6, "autocontrast", 5)),
        ((0.6, "invert", 4), (1.0, "equalize", 8)),
        ((0.6, "color", 4), (1.0, "contrast", 8)),
    ),
}


def apply_policy(name: PolicyName, images: Bytes, bits: NDArray[np.uint64]) -> Bytes:
    """Apply a sub-policy to each image: ``bits`` are ``[B, NUM_DRAWS]``.

    Raises:
        MissingExtraError: if Pillow is not installed.
    """
    operations, to_image = _pillow_operations()
    sub_policies = SUB_POLICIES[name]
    chosen = to_integers(bits[:, 0], len(sub_policies)).tolist()
    chances, signs = to_uniform(bits[:, 1::2]).tolist(), to_integers(bits[:, 2::2], 2).tolist()
    augmented = images.copy()
    for i, out in enumerate(augmented):
        image = None
        for (probability, operation, index), chance, sign in zip(
            sub_policies[chosen[i]], chances[i], signs[i], strict=True
        ):
            if chance < probability:
                if image is None:
                    image = to_image(np.ascontiguousarray(images[i].transpose(1, 2, 0)))
                image = operations[operation](image, _signed_magnitude(operation, index, sign))
        if image is not None:
            out[...] = np.asarray(image).transpose(2, 0, 1)
    return augmented


def _signed_magnitude(operation: str, index: int, sign: int) -> float:
    magnitude = MAGNITUDES[operation][index]
    if operation in SIGNED:
        return magnitude if sign else -magnitude
    if operation in AROUND_ONE:
        return 1 + magnitude if sign else 1 - magnitude
    return magnitude


@cache
def _pillow_operations() -> tuple[dict[str, Callable[[Any, float], Any]], Callable[[Bytes], Any]]:
    """Return the operations by name, and the function that makes an image of ``[H, W, 3]``."""
    try:
        from PIL import Image, ImageEnhance, ImageOps  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"AutoAugment needs Pillow: {install_command('data')}") from error
    nearest, bicubic = Image.Resampling.NEAREST, Image.Resampling.BICUBIC

    def affine(image: Any, matrix: tuple[Any, ...], resample: Any) -> Any:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=FILL)

    return {
        "shear_x": lambda image, m: affine(image, (1, m, 0, 0, 1, 0), bicubic),
        "shear_y": lambda image, m: affine(image, (1, 0, 0, m, 1, 0), bicubic),
        "translate_x": lambda image, m: affine(image, (1, 0, m * image.width, 0, 1, 0), nearest),
        "translate_y": lambda image, m: affine(image, (1, 0, 0, 0, 1, m * image.height), nearest),
        "rotate": lambda image, m: image.rotate(m, fillcolor=FILL),
        "color": lambda image, m: ImageEnhance.Color(image).enhance(m),
        "posterize": lambda image, m: ImageOps.posterize(image, int(m)),
        "solarize": lambda image, m: ImageOps.solarize(image, cast(Any, m)),
        "contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(m),
        "sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(m),
        "brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(m),
        "autocontrast": lambda image, m: ImageOps.autocontrast(image),
        "equalize": lambda image, m: ImageOps.equalize(image),
        "invert": lambda image, m: ImageOps.invert(image),
    }, Image.fromarray
