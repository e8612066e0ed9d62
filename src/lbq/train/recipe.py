"""A recipe: everything that decides what a run computes, as data.

What only decides where and how fast (devices, workers, folders) is not in it: a recipe may go from
a laptop to a cluster in the middle of a run.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lbq.config_io import (
    Document,
    DocumentError,
    digest,
    dump_json,
    from_document,
    read_json,
    to_document,
)
from lbq.data import DataConfig
from lbq.errors import RecipeError
from lbq.ranges import Range, check_ranges
from lbq.train.loss import LossKind
from lbq.train.model_config import ModelConfig
from lbq.train.optim import OptimConfig, ScheduleConfig
from lbq.train.precision import PrecisionKind


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, on what, and how."""

    name: str
    """What people call it."""
    data: DataConfig
    """The data, and how training samples are varied."""
    model: ModelConfig
    """The network."""
    epochs: int
    """Passes over the training samples."""
    batch: int
    """Samples of one step, over all devices together."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How the learning rate moves."""
    loss: LossKind = "mean"
    """Cross-entropy of the "mean" over time (the paper), or mean of the cross-entropies, "tet"."""
    label_smoothing: float = 0.0
    """Share of every target that is spread over all classes."""
    precision: PrecisionKind = "bf16"
    """What convolutions compute in; neurons always compute in float32."""
    channels_last: bool = True
    """Memory order of images; faster with bf16 and fp16."""
    compile: bool = False
    """Whether torch.compile translates the network first; minutes at the start."""
    accumulate: int = 1
    """Parts that a device's share of a batch is cut into, to fit its memory."""
    ema_decay: float | None = None
    """Keep, and evaluate, a moving average of the weights; 0.9998 for ImageNet, None for none."""
    calibrate: float | None = None
    """Set the steps from the first batch so that this percentile of the membranes just reaches the
    largest level; None leaves them where the neuron starts them."""
    deterministic: Literal["samples", "canonical"] = "samples"
    """ "samples": the same samples and augmentations for any number of devices. "canonical": the
    same weights too, bit for bit on the same kind of device; slower (docs/training.md)."""
    shards: int = 8
    """Parts of a batch in canonical mode; the number of devices must divide it."""
    on_nonfinite: Literal["abort", "skip"] = "abort"
    """What to do when a loss or gradient is not finite: stop, or skip up to three steps in a row.
    The weights stay finite either way."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last one is always evaluated."""
    test_batch: int = 500
    """Samples of one evaluation step, per device."""
    seed: int = 42
    """Decides weights, order and augmentation."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        check_ranges(
            self,
            RecipeError,
            epochs=Range(1),
            batch=Range(1),
            accumulate=Range(1),
            shards=Range(1),
            evaluate_every=Range(1),
            test_batch=Range(1),
            seed=Range(0, 2**64 - 1),
            label_smoothing=Range(0, 1, is_open_above=True),
            ema_decay=Range(0, 1, is_open_below=True, is_open_above=True),
            calibrate=Range(0, 100, is_open_below=True),
        )
        if not is_folder_name(self.name):
            raise RecipeError(
                f"name must be usable as the name of a folder: without slashes and control "
                f"characters, not . or .., at most 200 characters; got {self.name[:200]!r}"
            )
        if self.deterministic == "canonical" and self.accumulate > 1:
            raise RecipeError("canonical mode cuts the batch into shards; leave accumulate at 1")
        if self.deterministic == "canonical" and self.batch % self.shards:
            raise RecipeError(
                f"a batch of {self.batch} cannot be cut into {self.shards} equal shards"
            )
        if self.data.is_events and self.data.timesteps != self.model.timesteps:
            raise RecipeError(
                f"recordings are cut into {self.data.timesteps} frames, but the network runs for "
                f"{self.model.timesteps} timesteps; set data.timesteps and model.timesteps alike"
            )

    def check_world_size(self, size: int) -> None:
        """Complain if that many devices cannot share a batch of this recipe."""
        parts = self.shards if self.deterministic == "canonical" else self.batch
        if parts % size or (self.batch // size) % self.accumulate:
            raise RecipeError(
                f"{size} devices cannot share a batch of {self.batch} evenly "
                f"(accumulate={self.accumulate}, deterministic={self.deterministic!r}, "
                f"shards={self.shards}); choose another number of devices or batch"
            )

    def digest(self) -> str:
        """Return the SHA-256 of the recipe, the same for equal recipes on any machine."""
        return digest(to_document(self))


def is_folder_name(name: str) -> bool:
    """Say whether a run of this name stays in the folder of all runs."""
    is_plain = name.isprintable() and not set(name) & {"/", "\\"}
    return is_plain and 0 < len(name) <= 200 and name not in (".", "..")


def write_recipe(recipe: Recipe) -> str:
    """Write a recipe as JSON, for people and for :func:`read_recipe`."""
    return dump_json(to_document(recipe))


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a JSON file; it is data, whatever it says no code is looked up."""
    try:
        return recipe_from_document(read_json(path))
    except DocumentError as error:
        raise RecipeError(f"this is no recipe: {error}") from error


def recipe_from_document(document: Document) -> Recipe:
    """Read a recipe from a document that :func:`lbq.config_io.to_document` made of one."""
    try:
        return from_document(Recipe, document)
    except DocumentError as error:
        raise RecipeError(str(error)) from error
