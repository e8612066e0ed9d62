"""Networks that were really trained as integers, with images that they never saw."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

import lbq
from lbq.cli.samples import open_samples, pieces
from lbq.deploy import LoweredNetwork
from lbq.shelf.pretrained import recipe_of
from lbq.train import Recipe, build_network
from lbq.train.document import from_document

CALIBRATION = 256
"""Training images whose levels are averaged."""
POCKET = "pocket-cifar10"
"""A trained network of the paper's shape, layer by layer, at an eighth of its width."""


def trained_integers(run: Path, source: str, *, batch: int) -> tuple[LoweredNetwork, torch.Tensor]:
    """Read ``run.json`` and ``run.safetensors``; return the network in 8 bits and test images."""
    recipe = from_document(Recipe, json.loads(run.with_suffix(".json").read_text())["recipe"])
    weights = load_file(run.with_suffix(".safetensors"))
    return _integers(recipe, source, batch, weights=weights)


def pocket_integers(source: str, *, batch: int) -> tuple[LoweredNetwork, torch.Tensor]:
    """Return the pocket network in 8 bits and CIFAR-10 test images."""
    weights = lbq.pretrained(POCKET).state_dict()
    return _integers(recipe_of(POCKET), source, batch, weights=weights)


def _integers(
    recipe: Recipe, source: str, batch: int, *, weights: dict[str, torch.Tensor]
) -> tuple[LoweredNetwork, torch.Tensor]:
    data = open_samples(recipe, source=source, cache=Path("~/.cache/lbq"))
    model = build_network(recipe.model, num_classes=data.num_classes).eval()
    model.load_state_dict(weights)
    normalization = recipe.data.augment.normalization
    calibration = next(pieces(data, split="train", limit=CALIBRATION, batch=CALIBRATION)).real
    net = lbq.to_fixed_point(
        lbq.lower(model, calibration[:1]),
        pixels=lbq.Pixels(mean=normalization.mean, std=normalization.std),
        calibration=calibration,
    )
    return net, next(pieces(data, limit=batch, batch=batch)).raw
