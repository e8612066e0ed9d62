"""The configuration of a data set, and opening it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lbq.data.augment import AugmentConfig
from lbq.data.encoded_images import DecodedOnRead, EncodedSet, image_contents
from lbq.data.images import open_images
from lbq.data.packed import open_packed
from lbq.data.recordings import open_recordings
from lbq.data.sampler import num_steps
from lbq.data.splits import Splits
from lbq.data.synthetic import open_synthetic
from lbq.errors import ParameterError
from lbq.preprocessing import Pixels
from lbq.ranges import Range, check_ranges

SYNTHETIC = "synthetic"
"""The source that needs no files."""

Kind = Literal["images", "nmnist", "cifar10-dvs", "dvs-gesture", "dvs128-objects"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data to read, and how to prepare it."""

    source: str
    """Hub id or folder of images, folder or zip file of recordings, or "synthetic"."""
    kind: Kind = "images"
    """Images, or the layout of a set of event recordings."""
    size: int | None = None
    """Side of the square that samples are resized to; None keeps their size."""
    train_split: str = "train"
    """Name of the split of images to train on."""
    test_split: str | None = None
    """Name of the split of images to test on; "test" or "validation" if None."""
    label: str | None = None
    """Column with the classes of images; "label", "fine_label" or "cls" if None."""
    limit: int | None = None
    """Number of training samples to use, spaced evenly over the set; all if None."""
    limit_test: int | None = None
    """Number of test samples to use."""
    max_corrupt: float = 0.0001
    """Largest share of corrupt training images, which are replaced by their neighbours while they
    are decoded. In test sets and packed sets every corrupt image is an error."""
    timesteps: int = 10
    """Number of frames of a recording (T)."""
    frames: Literal["number", "time"] = "number"
    """Frames hold equal numbers of events, or last equally long."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Augmentation of training samples."""

    def __post_init__(self) -> None:
        """Raise ParameterError for values out of range and contradictions."""
        for name in ("source", "train_split", "test_split", "label"):
            value = getattr(self, name)
            if value is not None and not value.isprintable():
                raise ParameterError(f"{name} must be text without control characters: {value!r}")
        augment = self.augment
        if augment.crop == "resized" and self.size is None:
            raise ParameterError("resized crops need a size; ImageNet's recipes use 224")
        if augment.crop == "resized" and self.source == SYNTHETIC:
            raise ParameterError("synthetic images have one size; crop them with crop='pad'")
        if self.is_events and (augment.crop != "none" or augment.policy or augment.cutout):
            raise ParameterError(
                "crop, policy and cutout are for images; vary event frames with events=..."
            )
        if augment.events != "none" and not self.is_events:
            raise ParameterError(f"events={augment.events!r} is for recordings, not {self.kind}")
        check_ranges(
            self,
            ParameterError,
            size=Range(1, 2**14),
            limit=Range(1),
            limit_test=Range(1),
            max_corrupt=Range(0, 1),
            timesteps=Range(1, 2**16),
        )

    @property
    def is_events(self) -> bool:
        """Whether samples are recordings of events."""
        return self.kind != "images"

    @property
    def preprocessing(self) -> Pixels | None:
        """Normalisation of the images; None for event counts: they are not normalised."""
        if self.is_events:
            return None
        return Pixels(mean=self.augment.normalization.mean, std=self.augment.normalization.std)


@dataclass(frozen=True, kw_only=True)
class Data:
    """An open data set."""

    config: DataConfig
    splits: Splits
    corrupt: dict[int, str] = field(default_factory=dict[int, str])
    """Training samples that were replaced so far, and why."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.splits.num_classes

    @property
    def num_train(self) -> int:
        """Number of training samples."""
        return len(self.splits.train.labels)

    @property
    def num_test(self) -> int:
        """Number of test samples."""
        return len(self.splits.test.labels)

    @property
    def digest(self) -> str:
        """SHA-256 of the set's content, independent of its source."""
        return self.splits.digest

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """``(C, H, W)`` of an image, ``(T, 2, H, W)`` of a recording."""
        return self.splits.train.shape

    @property
    def is_sequence(self) -> bool:
        """Whether a sample has a time axis of its own."""
        return len(self.sample_shape) == 4

    @property
    def batch_axis(self) -> int:
        """Axis of a batch that counts samples."""
        return int(self.is_sequence)


def open_data(config: DataConfig, cache: str | Path) -> Data:
    """Open a data set; small ones are decoded on first use and packed under ``cache``."""
    return Data(config=config, splits=_open_splits(config, Path(cache).expanduser()))


def steps_per_epoch(data: Data, global_batch: int) -> int:
    """Count the whole global batches of an epoch."""
    return num_steps(data.num_train, global_batch)


def _open_splits(config: DataConfig, cache: Path) -> Splits:
    limits = config.limit, config.limit_test
    if config.source == SYNTHETIC:
        timesteps = config.timesteps if config.is_events else None
        return open_synthetic(size=config.size, timesteps=timesteps, limits=limits)
    if config.is_events:
        return open_recordings(
            config.source,
            config.kind,
            timesteps=config.timesteps,
            slicing=config.frames,
            size=config.size,
            limits=limits,
            cache=cache / "packed",
        )
    found = open_images(
        config.source,
        splits=(config.train_split, config.test_split),
        label=config.label,
        limits=limits,
        cache=cache,
    )
    return _open_encoded(config, found, cache)


def _open_encoded(config: DataConfig, found: EncodedSet, cache: Path) -> Splits:
    """Pack a set of images, or keep it encoded if every epoch decodes new crops."""
    if config.augment.crop == "resized":
        assert config.size is not None
        return Splits(
            train=DecodedOnRead(found.train, config.size, replaces_corrupt=config.max_corrupt > 0),
            test=DecodedOnRead(found.test, config.size),
            num_classes=found.num_classes,
            digest=found.digest(),
        )
    return open_packed(
        cache / "packed",
        identity=found.identity | {"size": config.size},
        num_classes=found.num_classes,
        contents=lambda: {
            "train": image_contents(found.train, config.size),
            "test": image_contents(found.test, config.size),
        },
    )
