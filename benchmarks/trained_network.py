"""A trained run as integers, with images that it never saw."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

import lbq
from lbq.cli.samples import open_samples, pieces
from lbq.deploy import LoweredNetwork
from lbq.train import Recipe, build_network
from lbq.train.document import from_document

CALIBRATION = 256
"""Training images whose levels are averaged."""


def trained_integers(run: Path, source: str, *, batch: int) -> tuple[LoweredNetwork, torch.Tensor]:
    """Read ``run.json`` and ``run.safetensors``; return the network in 8 bits and test images."""
    recipe = from_document(Recipe, json.loads(run.with_suffix(".json").read_text())["recipe"])
    data = open_samples(recipe, source=source, cache=Path("~/.cache/lbq"))
    model = build_network(recipe.model, num_classes=data.num_classes).eval()
    model.load_state_dict(load_file(run.with_suffix(".safetensors")))
    normalization = recipe.data.augment.normalization
    calibration = next(pieces(data, split="train", limit=CALIBRATION, batch=CALIBRATION)).real
    net = lbq.to_fixed_point(
        lbq.lower(model, calibration[:1]),
        pixels=lbq.Pixels(mean=normalization.mean, std=normalization.std),
        calibration=calibration,
    )
    return net, next(pieces(data, limit=batch, batch=batch))[1]
