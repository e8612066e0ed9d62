"""Pretrained networks with real images: lowered, and as integers; the ReLU network beside them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import lbq
from lbq.cli.samples import open_samples, sample_batches
from lbq.data import Data
from lbq.graph import LoweredNetwork
from lbq.pretrained import pretrained_recipe
from lbq.train import build_network
from lbq.train.model_config import Network
from lbq.train.recipe import Recipe, recipe_from_document
from lbq_paper.checkout import ROOT

POCKET = "pocket-cifar10"
"""The paper's ResNet-20 at an eighth of its width."""
WIDTH = 0.125
ANN = ROOT / "results" / "training" / "pocket-ann"


class Trained(NamedTuple):
    """A trained network, lowered, and the arguments of ``lbq.to_fixed_point``."""

    model: Network
    data: Data
    lowered: LoweredNetwork
    pixels: lbq.Pixels
    calibration: Tensor
    """Training images, as the trained network takes them."""


def open_trained(
    name: str, source: str, *, calibration: int = 512, timesteps: int | None = None
) -> Trained:
    """Open a pretrained network and its data set; ``timesteps`` replaces its own."""
    recipe, model = pretrained_recipe(name), lbq.load_pretrained(name)
    data = open_samples(recipe, source=source, cache=Path("~/.cache/lbq"))
    if timesteps is not None:
        other = replace(recipe.model, timesteps=timesteps)
        weights, model = model.state_dict(), build_network(other, num_classes=data.num_classes)
        model.load_state_dict(weights)
    norm = recipe.data.augment.normalization
    images = next(sample_batches(data, split="train", limit=calibration, batch=calibration)).real
    lowered = lbq.lower(model.eval(), images[:1])
    return Trained(model, data, lowered, lbq.Pixels(mean=norm.mean, std=norm.std), images)


def pocket_integers(source: str, *, batch: int) -> tuple[LoweredNetwork, torch.Tensor]:
    """Return the pocket network in 8 bits and CIFAR-10 test images."""
    known = open_trained(POCKET, source, calibration=256)
    net = lbq.to_fixed_point(known.lowered, pixels=known.pixels, calibration=known.calibration)
    return net, next(sample_batches(known.data, limit=batch, batch=batch)).raw


def ann_recipe() -> Recipe:
    """Return the recipe of the trained ReLU network of pocket size."""
    return recipe_from_document(json.loads(ANN.with_suffix(".json").read_text())["recipe"])


def trained_ann() -> nn.Module:
    """Return the trained ReLU network of pocket size."""
    ann = build_network(ann_recipe().model, num_classes=10).eval()
    ann.load_state_dict(load_file(ANN.with_suffix(".safetensors")))
    return ann
