"""Deploy a trained network: lower it, check the result, convert it to integers, run it in numpy.

    python examples/leave_training.py

examples/numpy_reader.py reads and runs the saved file without torch and lbq.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import lbq

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
"""Normalisation of CIFAR-10 during training."""


def main() -> None:
    """Lower a model, save it as a bundle and run it with numpy."""
    torch.manual_seed(0)
    model = lbq.load_pretrained("pocket-cifar10")
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)  # placeholder for images
    given = lbq.Pixels(mean=MEAN, std=STD)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    images = (pixels / 255 - mean) / std

    net = lbq.lower(model.double(), images.double()[:1])
    logits = lbq.run_network(net, images.double())
    difference = (logits - model(images.double())).abs().max().item()
    print(f"lowered: logits differ by {difference:.1e}")

    integers = lbq.to_fixed_point(net, bits=8, pixels=given, calibration=images.double())
    answer = lbq.run_network(integers, pixels)
    for backend in ("unary", "planes"):
        assert torch.equal(lbq.run_network(integers, pixels, backend=backend), answer)
    widths = [bound.bits for bound in lbq.graph.prove(integers).values()]
    print(f"integers: {widths.count(16)} of {len(widths)} accumulators are proven to fit 16 bits")

    with tempfile.TemporaryDirectory() as folder:
        lbq.save_network(integers, Path(folder) / "net.lbq")
        np.save(Path(folder) / "images.npy", pixels.numpy())
        reader = Path(__file__).with_name("numpy_reader.py")
        files = [Path(folder) / "net.lbq", Path(folder) / "images.npy"]
        command = [sys.executable, reader, *files]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603
    print(f"numpy alone answers:\n{done.stdout.decode()}torch answers:\n{answer.tolist()}")


if __name__ == "__main__":
    main()
