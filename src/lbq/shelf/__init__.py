"""The shelf: trained networks that come with the library, each with its record and its card."""

from lbq.shelf.pretrained import (
    SIDE,
    is_on_shelf,
    pretrained,
    pretrained_names,
    recipe_of,
    record_of,
)

__all__ = ["SIDE", "is_on_shelf", "pretrained", "pretrained_names", "recipe_of", "record_of"]
