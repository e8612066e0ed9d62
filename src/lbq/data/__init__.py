"""Batches of images and event recordings, augmented as a function of the seed."""

from lbq.data.augment import (
    CIFAR10,
    CIFAR100,
    IMAGENET,
    UNIT,
    AugmentConfig,
    MixConfig,
    Normalization,
)
from lbq.data.batch import Batch
from lbq.data.dataset import SYNTHETIC, Data, DataConfig, open_data, steps_per_epoch
from lbq.data.loaders import eval_batches, train_batches
from lbq.data.sampler import sample_rng

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
    "sample_rng",
    "steps_per_epoch",
    "train_batches",
]
