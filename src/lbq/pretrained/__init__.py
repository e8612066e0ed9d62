"""Trained networks that come with the library, each with its record and its card."""

from lbq.pretrained.loading import (
    IMAGE_SIZE,
    is_pretrained,
    load_pretrained,
    pretrained_names,
    pretrained_recipe,
    pretrained_record,
)

__all__ = [
    "IMAGE_SIZE",
    "is_pretrained",
    "load_pretrained",
    "pretrained_names",
    "pretrained_recipe",
    "pretrained_record",
]
