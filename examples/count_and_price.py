"""Build the paper's network, watch its levels, count what they cost, and price the counts.

python examples/count_and_price.py                  a quarter of the width, random images
python examples/count_and_price.py --width 1 --max-level 10
"""

import argparse

import torch

import lbq


def main() -> None:
    """Count and price an untrained network."""
    parser = argparse.ArgumentParser(description="count and price an untrained network")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--timesteps", type=int, default=2)
    parser.add_argument("--max-level", type=int, default=5)
    parser.add_argument("--images", type=int, default=16)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = lbq.resnet20(
        num_classes=10,
        timesteps=arguments.timesteps,
        max_level=arguments.max_level,
        width=arguments.width,
    )
    images = torch.randn(arguments.images, 3, 32, 32)
    with torch.no_grad():
        lbq.calibrate_steps(model, [images])
        for _ in range(20):  # batch norm gets to know the data; training would do both
            model(images)
    model.eval()

    tally = lbq.Tally(model, images[:1])
    with torch.no_grad(), lbq.watch_levels(model, tally):
        model(images)

    table = tally.table()
    print(table, end="\n\n")
    print(lbq.EnergyModel().price(table))


if __name__ == "__main__":
    main()
