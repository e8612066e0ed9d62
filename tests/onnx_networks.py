"""What the tests of exports share: lowered networks, and the levels that a file gives."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from random_networks import RandomNetwork, to_proven_integers

import lbq
from lbq.formats.onnx import export_onnx
from lbq.formats.onnx.run import OnnxRunner, answer_name, is_answer
from lbq.lowering.fixed_point import Pixels, to_fixed_point
from lbq.lowering.lower import lower
from lbq.runtime.run import run_network

ENGINES = ("onnxruntime", "openvino")
MEAN, STD = (0.49, 0.48, 0.44), (0.25, 0.24, 0.26)


def stir(model):
    """Give every batch norm statistics of its own, as training would; return it in eval mode."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            module.bias.data.normal_(0, 0.3)
    return model.eval()


def resnet(build, *, timesteps, block="basic", batch=2, **options):
    """Return a lowered ResNet with lively statistics, its inputs, and these as bytes."""
    torch.manual_seed(timesteps)
    model = stir(build(10, timesteps=timesteps, width=1 / 16, block=block, **options))
    if build.form == "events":
        raw = torch.randint(0, 4, (timesteps, batch, 2, 16, 16), dtype=torch.uint8)
        return lower(model, raw.float()), raw.float(), raw
    raw = torch.randint(0, 256, (batch, 3, 16, 16), dtype=torch.uint8)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    images = (raw / 255 - mean) / std
    return lower(model, images), images, raw


def lowered_resnet(build, *, timesteps, bits, **options):
    """Return a ResNet of integers and bytes for it; without bits, of real numbers and images."""
    net, inputs, raw = resnet(build, timesteps=timesteps, **options)
    if bits is None:
        return net, inputs
    pixels = None if net.takes_frames else Pixels(mean=MEAN, std=STD)
    return to_fixed_point(net, bits=bits, pixels=pixels, calibration=inputs), raw


def random_integers(seed, *, bits):
    """Return a random network of integers and bytes for it."""
    model = RandomNetwork(seed)
    raw = model.inputs()
    if model.takes_frames:
        return to_proven_integers(lower(model, raw.float() / 64), bits=bits), raw
    shape = (model.channels, 1, 1)
    net = lower(model, (raw / 255 - torch.full(shape, 0.4)) / torch.full(shape, 0.3))
    pixels = Pixels(mean=[0.4] * model.channels, std=[0.3] * model.channels)
    return to_proven_integers(net, bits=bits, pixels=pixels), raw


def answers(net, inputs):
    """Return logits and all levels of a lowered network: ``[T, B, ...]`` by path."""
    seen = {}
    logits = run_network(
        net, inputs, backend="dense", watch=lambda layer, t, x: seen.setdefault(layer, []).append(x)
    )
    levels = {path: torch.stack(found).numpy() for path, found in seen.items()}
    logits = logits if isinstance(logits, tuple) else (logits,)
    return {answer_name(k): found.numpy() for k, found in enumerate(logits)} | levels


def exported_answers(net, inputs, *, engine, style="exact"):
    """Return the same of an exported file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        export_onnx(net, path, style=style, outputs_levels=True)
        return OnnxRunner(path, engine=engine, threads=1).run_all(inputs.numpy())


def num_different(got, expected):
    """Count the levels and logits that differ, by path; paths without any are left out."""
    assert set(got) == set(expected)
    counts = {path: int((got[path] != expected[path]).sum()) for path in expected}
    assert all(got[path].shape == expected[path].shape for path in expected)
    return {path: count for path, count in counts.items() if count}


def is_lively(expected):
    """Tell whether levels vary, so that agreement means something."""
    varied = [
        len(np.unique(levels)) > 1 for path, levels in expected.items() if not is_answer(path)
    ]
    return sum(varied) > len(varied) / 2


RESNETS = {"resnet18": lbq.resnet18, "resnet19": lbq.resnet19, "resnet20": lbq.resnet20}
