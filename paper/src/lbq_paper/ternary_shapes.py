"""Find out why ternary spikes are less accurate than binary ones at pocket size.

    python -m lbq_paper.ternary_shapes --data $LBQ_DATA/cifar10 --out results/ternary-shapes.json

trains the small recipe for two epochs (annealed to the end) with spiking neurons, and with plain
functions in place of its ReLUs: no spikes, no membranes, no surrogate. ``--work`` keeps the runs:
finished ones are not trained again.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from torch import Tensor, nn

from lbq.train import NeuronConfig, Recipe, RunOptions, train
from lbq_paper.experiments import study_recipe

EPOCHS = 2
LOW_RATE = 0.05
"""A quarter of the recipe's learning rate."""
NEURONS = {
    "binary": NeuronConfig(kind="binary"),
    "v1-n1": NeuronConfig(kind="v1", max_level=1),
    "ternary": NeuronConfig(kind="ternary"),
    "ternary-lr05": NeuronConfig(kind="ternary"),
    "ternary-fp32": NeuronConfig(kind="ternary"),
    "ternary-relsg": NeuronConfig(kind="ternary", surrogate="relsg-et"),
    "ternary-half": NeuronConfig(kind="ternary", step=0.5),
    "ternary-original": NeuronConfig(kind="ternary-original"),
}


class SoftSpikes(nn.Module):
    """The integral of Box-ET with one level: zero up to half a step, then a ramp to one.

    Args:
        is_signed: whether it is odd.
    """

    def __init__(self, *, is_signed: bool) -> None:
        super().__init__()
        self.is_signed = is_signed

    def forward(self, x: Tensor) -> Tensor:
        """Return values from 0 or -1 to 1."""
        positive = (x - 0.5).clamp(0, 1)
        return positive - (-x - 0.5).clamp(0, 1) if self.is_signed else positive


SHAPES = {
    "relu": nn.ReLU,
    "clip0": lambda: nn.Hardtanh(0.0, 1.0),
    "clip1": lambda: nn.Hardtanh(-1.0, 1.0),
    "soft1": lambda: SoftSpikes(is_signed=False),
    "soft2": lambda: SoftSpikes(is_signed=True),
    "identity": nn.Identity,
}


def main() -> None:
    """Train what is not trained yet; write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/ternary-shapes"))
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {"neurons": {}, "shapes": {}}
    for name, neuron in NEURONS.items():
        recipe = _short(study_recipe(neuron), options.data)
        if name == "ternary-lr05":
            recipe = replace(recipe, optim=replace(recipe.optim, lr=LOW_RATE))
        if name == "ternary-fp32":
            recipe = replace(recipe, precision="fp32")
        found["neurons"][name] = _accuracy(recipe, options.work / name)
    for name, shape in SHAPES.items():
        recipe = _short(study_recipe(NeuronConfig(kind="relu")), options.data)
        with patch.object(nn, "ReLU", shape):
            found["shapes"][name] = _accuracy(recipe, options.work / f"ann-{name}")
    text = json.dumps({"epochs": EPOCHS, "seed": 0, "accuracy": found}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def _short(recipe: Recipe, source: str) -> Recipe:
    data = replace(recipe.data, source=source)
    return replace(recipe, data=data, epochs=EPOCHS, evaluate_every=1)


def _accuracy(recipe: Recipe, out: Path) -> float:
    """Train, unless that was done, and return the accuracy on the whole test set."""
    options = RunOptions(threads=1, allow_changed=("code",))
    return train(recipe, out, options).evaluations[-1].accuracy


if __name__ == "__main__":
    main()
