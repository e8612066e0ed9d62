"""The int8 styles of ONNX files: changed levels, changed answers, accuracy.

    python benchmarks/compare_onnx.py pocket-cifar10 --data $LBQ_DATA/cifar10

takes a pretrained network, lets it run for one timestep (it was trained with more), and compares
ONNX Runtime and OpenVINO with ``lbq.run_network`` of the same integers on test images.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import lbq
from lbq.cli.samples import sample_batches
from lbq.formats import OnnxRunner, export_onnx
from lbq.formats.onnx.run import Engine
from lbq_paper.trained_network import open_trained

ENGINES: tuple[Engine, ...] = ("onnxruntime", "openvino")
STYLES: tuple[Literal["int8", "int8-lossy"], ...] = ("int8", "int8-lossy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of a pretrained network")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    _, data, lowered, pixels, calibration = open_trained(
        arguments.name, arguments.data, timesteps=1
    )
    batches = list(sample_batches(data, limit=arguments.images, batch=250))
    record: dict[str, dict[str, float]] = {}
    print(f"{'':32}{'moved':>9}{'same answer':>13}{'accuracy':>10}{'lbq':>9}")
    for bits in (8, 4):
        net = lbq.to_fixed_point(lowered, bits=bits, pixels=pixels, calibration=calibration)
        for style in STYLES:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "net.onnx"
                export_onnx(net, file, style=style, outputs_levels=True)
                for engine in ENGINES:
                    runner = OnnxRunner(file, engine=engine, threads=torch.get_num_threads())
                    found = compare(net, runner, [(b.raw, b.target) for b in batches])
                    record[f"{bits} bits, {style}, {engine}"] = found
                    print(
                        f"{f'{bits} bits, {style}, {engine}':32}{found['levels_moved']:9.2%}"
                        f"{found['same_answer']:13.1%}{found['accuracy']:10.1%}"
                        f"{found['accuracy_of_lbq_run']:9.1%}"
                    )
    if arguments.out:
        whole = {"images": arguments.images, "timesteps": 1, "forms": record}
        arguments.out.write_text(json.dumps(whole, indent=1) + "\n")


def compare(
    net: lbq.LoweredNetwork, runner: OnnxRunner, batches: list[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Return the shares of moved levels and of equal answers, and both accuracies."""
    moved = total = same = right = right_of_ours = count = 0
    for raw, target in batches:
        seen: dict[str, list[Tensor]] = {}

        def keep(layer: str, t: int, level: Tensor, seen: dict[str, list[Tensor]] = seen) -> None:
            seen.setdefault(layer, []).append(level)

        ours = lbq.run_network(net, raw, watch=keep).argmax(1).numpy()
        given = runner.run_all(raw.numpy())
        theirs = given["logits"].argmax(1)
        for layer, levels in seen.items():
            expected = torch.stack(levels).numpy()
            moved += int(np.sum(given[layer] != expected))
            total += expected.size
        same += int(np.sum(ours == theirs))
        right += int(np.sum(theirs == target.numpy()))
        right_of_ours += int(np.sum(ours == target.numpy()))
        count += len(target)
    return {
        "levels_moved": moved / total,
        "same_answer": same / count,
        "accuracy": right / count,
        "accuracy_of_lbq_run": right_of_ours / count,
    }


if __name__ == "__main__":
    main()
