r"""E-SpikeFormer on the native engine against the same shape in int8 on dense engines.

    python benchmarks/bench_transformer.py --isas avx2 avx512 avx512vnni \
        --out benchmarks/results/transformer.json

Two networks: the trained pocket transformer on CIFAR-10 test images (``--data`` or
``$LBQ_DATA/cifar10``) and E-SpikeFormer 5 M at 224 pixels, whose weights are random and whose steps
were set so that ``--activity`` of the levels are not zero. ONNX Runtime and OpenVINO run the same
network with ReLUs in place of neurons, quantised by ONNX Runtime's own tool (per channel, QDQ).
The engine also runs with the three matrices of every attention in the more expensive order.
Interleaved, one image, one thread. ``--isas`` limits the engine (``LBQ_ISA``) and OpenVINO
(``ONEDNN_MAX_CPU_ISA``), each set in its own process; ONNX Runtime has no such option.
"""

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from bench_inference import timed
from dense_engines import onnx_runs
from measure import ONEDNN_CAPS, on_each_isa, write_record
from torch import nn

import lbq
from lbq.cli.samples import sample_batches
from lbq.graph import LoweredNetwork
from lbq.lowering import lower_arithmetic
from lbq.models import SpikeFormer, spikeformer_5m
from lbq.neurons import named_neurons
from lbq.runtime.native_engine import NativeEngine
from lbq.train.provenance import git_commit
from lbq_paper.int8_ann import int8_onnx

IS_LEFT_FIRST = lower_arithmetic.is_left_first
TRAINED = "pocket-spikeformer-cifar10"
PIXELS = lbq.Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def with_relus(model: SpikeFormer) -> SpikeFormer:
    """Put ReLUs in place of all neurons."""
    for path, _ in list(named_neurons(model)):
        model.set_submodule(path, nn.ReLU())
    return model.eval()


def int8_model(model: SpikeFormer, size: int) -> bytes:
    """Return a network with ReLUs in int8, for random images of this size."""
    torch.manual_seed(0)
    return int8_onnx(model, torch.rand(4, 3, size, size))


@torch.no_grad()
def set_activity(model: SpikeFormer, images: torch.Tensor, share: float) -> None:
    """Scale the currents of every neuron so that this share of its levels is not zero."""
    for _, neuron in named_neurons(model):

        def scale(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            currents = args[0]
            some = currents.flatten()[:: max(1, currents.numel() // 100_000)]
            module.step.set_(torch.quantile(some, 1 - share).clamp(min=1e-3))  # pyright: ignore

        hook = neuron.register_forward_pre_hook(scale)
        model(images)
        hook.remove()


def other_association(*shapes: tuple[int, ...]) -> bool:
    """Choose the order of three matrices that takes more products."""
    return not IS_LEFT_FIRST(*shapes)


def large(activity: float) -> tuple[LoweredNetwork, torch.Tensor, bytes]:
    """Return E-SpikeFormer 5 M with bursts in 8 bits, an image, and the network with ReLUs."""
    torch.manual_seed(0)

    def burst(channels: int) -> lbq.BurstLIF:
        del channels
        return lbq.BurstLIF(4, step=lbq.LearnedStep(0.5))

    model = spikeformer_5m(1000, neuron=burst).eval()
    image = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    mean, std = (torch.tensor(value).reshape(3, 1, 1) for value in (PIXELS.mean, PIXELS.std))
    real = (image / 255 - mean) / std
    set_activity(model, real, activity)
    net = lbq.to_fixed_point(lbq.lower(model, real), pixels=PIXELS)
    return net, image, int8_model(with_relus(spikeformer_5m(1000)), 224)


def pocket(source: str) -> tuple[LoweredNetwork, torch.Tensor, bytes]:
    """Return the trained network in 8 bits, a test image, and its shape with ReLUs."""
    from lbq_paper.trained_network import open_trained  # noqa: PLC0415 -- opens a data set

    known = open_trained(TRAINED, source, calibration=256)
    net = lbq.to_fixed_point(known.lowered, pixels=known.pixels, calibration=known.calibration)
    image = next(sample_batches(known.data, limit=1, batch=1)).raw
    ann = lbq.load_pretrained(TRAINED)
    assert isinstance(ann, SpikeFormer)
    return net, image, int8_model(with_relus(ann), 32)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Time both networks."""
    torch.set_num_threads(1)
    builders = {"pocket": partial(pocket, options.data), "5 M": partial(large, options.activity)}
    record: dict[str, Any] = {}
    for name in options.networks:
        net, image, model = builders[name]()
        with mock.patch.object(lower_arithmetic, "is_left_first", other_association):
            dearer, _, _ = builders[name]()
        engine, other = NativeEngine(net), NativeEngine(dearer)
        answers = [lbq.run_network(net, image), *(e.run(image, threads=1) for e in (engine, other))]
        if not all(torch.equal(answer, answers[0]) for answer in answers):
            raise SystemExit(f"{name}: the engine differs from the dense backend")
        print(f"\n{name}")
        runs = {
            "engine, measured": partial(engine.run, image, threads=1),
            "engine, other association": partial(other.run, image, threads=1),
        }
        runs |= onnx_runs(model, 1, 1, image.shape[-1])
        record[name] = timed(runs, options)
        record[name]["nodes"] = len(net.nodes)
    return record


def main() -> None:
    """Measure each instruction set in its own process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--isas", nargs="+", choices=ONEDNN_CAPS)
    parser.add_argument(
        "--networks", nargs="+", choices=("pocket", "5 M"), default=["pocket", "5 M"]
    )
    parser.add_argument("--activity", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--data", default=str(Path(os.environ.get("LBQ_DATA", ".")) / "cifar10"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record: dict[str, Any] = {"commit": git_commit()}
    record["activity of the 5 M network"] = options.activity
    record |= on_each_isa(options.isas) if options.isas else measure(options)
    write_record(options.out, record)


if __name__ == "__main__":
    main()
