"""Accuracy of integers: the trained network, lowered, and in 16, 8 and 4 bits.

    python benchmarks/compare_integers.py pocket-cifar10 --data $LBQ_DATA/cifar10

runs every form of a network that comes with lbq on the whole test set. Levels are compared with
those of the trained float32 network twice: every layer alone, fed with the trained network's
levels, and end to end, where one changed level changes hundreds after it.
"""

import argparse
from pathlib import Path

import torch
from measure import write_record
from torch import Tensor, nn

import lbq
from lbq.cli.samples import sample_batches
from lbq.graph.graph import Node
from lbq.graph.operators import LevelNeuron
from lbq_paper.trained_network import open_trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of a pretrained network")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    model, data, lowered, pixels, calibration = open_trained(arguments.name, arguments.data)
    forms = {"float32, lowered": lowered}
    for bits in (16, 8, 4):
        for name, images in (("", None), (", calibrated", calibration)):
            net = lbq.to_fixed_point(lowered, bits=bits, pixels=pixels, calibration=images)
            forms[f"int{bits}{name}"] = net
    correct = dict.fromkeys(["float32, trained", *forms], 0)
    moved, alone, agree = (dict.fromkeys(forms, 0) for _ in range(3))
    total = count = 0
    for samples in sample_batches(data, limit=arguments.images, batch=100):
        images, raw, target = samples.real, samples.raw, samples.target
        trained, answer = _levels_of(model, images)
        correct["float32, trained"] += int((answer == target).sum())
        for name, net in forms.items():
            inputs = raw if net.is_integer else images
            levels, guess = _levels_of(net, inputs)
            correct[name] += int((guess == target).sum())
            agree[name] += int((guess == answer).sum())
            moved[name] += sum(int((levels[key] != trained[key]).sum()) for key in trained)
            alone[name] += _moved_alone(net, inputs, trained)
        total += sum(level.numel() for level in trained.values())
        count += len(target)
    record = {
        name: {
            "accuracy": found / count,
            "levels_moved": moved.get(name, 0) / total,
            "levels_moved_alone": alone.get(name, 0) / total,
            "same_answer": agree[name] / count if name in agree else 1.0,
        }
        for name, found in correct.items()
    }
    heading = f"{'accuracy':>10}{'moved alone':>13}{'moved':>10}{'same answer':>13}"
    print(f"{count:6} images{'':11}{heading}")
    for name, row in record.items():
        print(
            f"{name:24}{row['accuracy']:10.2%}{row['levels_moved_alone']:13.1e}"
            f"{row['levels_moved']:10.1e}{row['same_answer']:13.2%}"
        )
    write_record(arguments.out, {"images": count, "forms": record})


@torch.no_grad()
def _levels_of(model: nn.Module, inputs: Tensor) -> tuple[dict[tuple[str, int], Tensor], Tensor]:
    levels: dict[tuple[str, int], Tensor] = {}

    def keep(layer: str, t: int, level: Tensor) -> None:
        levels[layer, t] = level

    with lbq.watch_levels(model, keep):
        return levels, model(inputs).argmax(1)


@torch.no_grad()
def _moved_alone(
    net: lbq.LoweredNetwork, inputs: Tensor, trained: dict[tuple[str, int], Tensor]
) -> int:
    """Count the levels that differ if every layer gets the trained network's levels."""
    moved = 0

    def compute(node: Node, *values: Tensor) -> Tensor:
        nonlocal moved
        made = node.compute(*values)
        if not isinstance(node.operator, LevelNeuron):
            return made
        expected = torch.stack([trained[node.path, t] for t in range(len(made))])
        moved += int((made != expected).sum())
        return expected

    net(inputs, compute)
    return moved


if __name__ == "__main__":
    main()
