"""Take a network out of training: lower it, check that it is the same, save it, run it elsewhere.

    python examples/leave_training.py

Elsewhere is numpy alone: examples/numpy_reader.py reads the file with neither torch nor lbq.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import lbq

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def main() -> None:
    """Walk the corridor from a model to numpy."""
    torch.manual_seed(0)
    model = lbq.resnet20(num_classes=10, timesteps=2, width=0.0625)
    pixels = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    images = (pixels / 255 - 0.5) / 0.25
    lbq.calibrate_steps(model, [images])  # training would do this, and more
    model.eval()

    net = lbq.lower(model.double(), images.double()[:1])
    logits = lbq.run(net, images.double())
    difference = (logits - model(images.double())).abs().max().item()
    print(f"lowered: logits differ by {difference:.1e}")

    given = lbq.Pixels(mean=MEAN, std=STD)
    integers = lbq.to_fixed_point(net, bits=8, pixels=given, calibration=images.double())
    answer = lbq.run(integers, pixels)
    for backend in ("unary", "planes"):
        assert torch.equal(lbq.run(integers, pixels, backend=backend), answer)
    widths = [bound.bits for bound in lbq.deploy.prove(integers).values()]
    print(f"integers: {widths.count(16)} of {len(widths)} accumulators are proven to fit 16 bits")

    with tempfile.TemporaryDirectory() as folder:
        lbq.save(integers, Path(folder) / "net.lbq")
        np.save(Path(folder) / "images.npy", pixels.numpy())
        reader = Path(__file__).with_name("numpy_reader.py")
        files = [Path(folder) / "net.lbq", Path(folder) / "images.npy"]
        command = [sys.executable, reader, *files]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603
    print(f"numpy alone answers:\n{done.stdout.decode()}torch answers:\n{answer.tolist()}")


if __name__ == "__main__":
    main()
