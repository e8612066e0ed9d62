"""The way in: images and events as batches, with augmentation that is a function of the seed."""

from lbq.data.augment import CIFAR10, CIFAR100, IMAGENET, UNIT, AugmentConfig, Normalization
from lbq.data.batches import Batch
from lbq.data.loaders import (
    SYNTHETIC,
    Data,
    DataConfig,
    eval_batches,
    open_data,
    steps_per_epoch,
    train_batches,
)
from lbq.data.mixing import MixConfig

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IMAGENET",
    "SYNTHETIC",
    "UNIT",
    "AugmentConfig",
    "Batch",
    "Data",
    "DataConfig",
    "MixConfig",
    "Normalization",
    "eval_batches",
    "open_data",
    "steps_per_epoch",
    "train_batches",
]
