"""Count the operations of a trained network and estimate their energy.

python examples/count_and_estimate.py                          random images
python examples/count_and_estimate.py --data uoft-cs/cifar10   real ones, from the hub or a folder
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import lbq
from lbq.data import eval_batches, open_data
from lbq.pretrained import pretrained_recipe

NAME = "pocket-cifar10"


def main() -> None:
    """Count the operations of a network that comes with lbq, and estimate their energy."""
    parser = argparse.ArgumentParser(description="count and price a trained network")
    parser.add_argument("--data", help="CIFAR-10: a hub id or a folder")
    parser.add_argument("--images", type=int, default=16)
    arguments = parser.parse_args()

    model = lbq.load_pretrained(NAME)
    if arguments.data:
        config = replace(pretrained_recipe(NAME).data, source=arguments.data)
        data = open_data(config, Path("~/.cache/lbq").expanduser())
        images, target, _ = next(eval_batches(data, batch=arguments.images))
    else:
        images, target = torch.randn(arguments.images, 3, 32, 32), None

    counter = lbq.OpCounter(model, images[:1])
    with torch.no_grad(), lbq.watch_levels(model, counter):
        logits = model(images)
    if target is not None:
        print(f"{int((logits.argmax(1) == target).sum())} of {len(target)} answers are right")

    table = counter.table()
    print(table, end="\n\n")
    print(lbq.EnergyModel().estimate(table))


if __name__ == "__main__":
    main()
