"""The network on the shelf, which was really trained, as integers, with images it never saw."""

from pathlib import Path

import torch

import lbq
from lbq.cli.samples import open_samples, pieces
from lbq.deploy import LoweredNetwork
from lbq.shelf import recipe_of

CALIBRATION = 256
"""Training images whose levels are averaged."""
POCKET = "pocket-cifar10"
"""A trained network of the paper's shape, layer by layer, at an eighth of its width."""
WIDTH = 0.125


def pocket_integers(source: str, *, batch: int) -> tuple[LoweredNetwork, torch.Tensor]:
    """Return the pocket network in 8 bits and CIFAR-10 test images."""
    recipe, model = recipe_of(POCKET), lbq.pretrained(POCKET)
    data = open_samples(recipe, source=source, cache=Path("~/.cache/lbq"))
    normalization = recipe.data.augment.normalization
    calibration = next(pieces(data, split="train", limit=CALIBRATION, batch=CALIBRATION)).real
    net = lbq.to_fixed_point(
        lbq.lower(model, calibration[:1]),
        pixels=lbq.Pixels(mean=normalization.mean, std=normalization.std),
        calibration=calibration,
    )
    return net, next(pieces(data, limit=batch, batch=batch)).raw
