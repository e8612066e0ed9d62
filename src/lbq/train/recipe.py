"""A recipe: every setting that decides what a run computes, as data.

Devices, workers and folders are not part of it and may change when a run is resumed.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import torch

from lbq.config_io import (
    Document,
    DocumentError,
    digest,
    dump_json,
    from_document,
    read_json,
    to_document,
)
from lbq.data import Data, DataConfig, open_data
from lbq.errors import RecipeError
from lbq.train.model_config import ModelConfig, Network, build_network
from lbq.train.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainConfig):
    """Network, data and training settings."""

    name: str
    """Name, also of the default run folder."""
    data: DataConfig
    """The data and its augmentation."""
    model: ModelConfig
    """The network."""

    def __post_init__(self) -> None:
        """Check ranges and combinations."""
        super().__post_init__()
        is_plain = self.name.isprintable() and not set(self.name) & {"/", "\\"}
        if not is_plain or not 0 < len(self.name) <= 200 or self.name in (".", ".."):
            raise RecipeError(
                f"name must be usable as the name of a folder: without slashes and control "
                f"characters, not . or .., at most 200 characters; got {self.name[:200]!r}"
            )
        if self.data.is_events and self.data.timesteps != self.model.timesteps:
            raise RecipeError(
                f"recordings are split into {self.data.timesteps} frames, but the network runs for "
                f"{self.model.timesteps} timesteps; set data.timesteps and model.timesteps "
                f"to the same number"
            )

    def digest(self) -> str:
        """Return the SHA-256 of the recipe."""
        return digest(to_document(self))

    def build(self, cache: str | Path) -> tuple[Network, Data, TrainConfig]:
        """Return the arguments of :func:`lbq.fit`: network, data, training settings.

        Args:
            cache: folder of decoded data sets.
        """
        data = open_data(self.data, cache)
        settings = {field.name: getattr(self, field.name) for field in fields(TrainConfig)}
        return self.build_model(data.num_classes), data, TrainConfig(**settings)

    def build_model(self, num_classes: int) -> Network:
        """Build the network, initialised from the seed; torch's generators do not change."""
        with torch.random.fork_rng([]):
            torch.manual_seed(self.seed)
            model = build_network(self.model, num_classes=num_classes)
        model.preprocessing = self.data.preprocessing
        return model


def write_recipe(recipe: Recipe) -> str:
    """Return a recipe as JSON for :func:`read_recipe`."""
    return dump_json(to_document(recipe))


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a JSON file; it is plain data, no code is loaded."""
    try:
        return recipe_from_document(read_json(path))
    except DocumentError as error:
        raise RecipeError(f"this is not a recipe: {error}") from error


def recipe_from_document(document: Document) -> Recipe:
    """Read a recipe from a document of ``lbq.config_io.to_document``."""
    try:
        return from_document(Recipe, document)
    except DocumentError as error:
        raise RecipeError(str(error)) from error
