"""Pools of currents, means that are added and 1x1 heads: the same answers in every format."""

import os

import nir  # noqa: F401 -- export_nir needs it
import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import lbq
from lbq.errors import LoweringError
from lbq.formats import export_nir, export_onnx, export_pt2, import_nir
from lbq.time import MeanOverTime, OverTime, RepeatOverTime


class Network(nn.Module):
    """Averages the currents before its second neuron; two heads, whose means are added."""

    def __init__(self, timesteps):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), RepeatOverTime(timesteps))
        self.neuron1, self.neuron2 = lbq.BurstLIF(step=0.2), lbq.BurstLIF(step=0.2)
        self.pooled = OverTime(nn.Conv2d(4, 4, 3, padding=1), nn.AvgPool2d(3, 2, 1))
        self.head1 = OverTime(nn.Flatten(), nn.Linear(64, 5))
        self.head2 = OverTime(nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        bursts = self.neuron2(self.pooled(self.neuron1(self.stem(x))))
        return self.head1(bursts).mean(0) + self.head2(bursts).mean(0)


@pytest.fixture(params=[1, 2])
def networks(request):
    """The lowered network and its inputs, its integers and their bytes."""
    torch.manual_seed(0)
    model = Network(request.param).eval()
    raw = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    images = (raw / 255 - 0.5) / 0.25
    net = lbq.lower(model, images)
    pixels = lbq.Pixels(mean=(0.5,) * 3, std=(0.25,) * 3)
    integers = lbq.to_fixed_point(net, bits=8, pixels=pixels)
    with torch.no_grad():
        torch.testing.assert_close(net(images), model(images), rtol=1e-5, atol=1e-5)
        scaled = lbq.run_network(integers, raw) * integers.logit_scale
        assert (scaled - model(images)).abs().mean() < 0.1 * model(images).abs().mean()
    return net, images, integers, raw


def by_onnx(path, inputs):
    session = onnxruntime.InferenceSession(str(path))
    return session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0]


def test_onnx_answers_the_same(networks, tmp_path):
    net, images, integers, raw = networks
    styles = ("exact", "fast", *(("int8",) if net.timesteps == 1 else ()))
    for style in styles:
        export_onnx(integers, tmp_path / "net.onnx", style=style)
        found = by_onnx(tmp_path / "net.onnx", raw)
        assert np.array_equal(found, lbq.run_network(integers, raw).numpy()), style
    export_onnx(net, tmp_path / "net.onnx")
    np.testing.assert_allclose(by_onnx(tmp_path / "net.onnx", images), net(images), atol=1e-5)


def test_programs_bundles_and_graphs_answer_the_same(networks, tmp_path):
    net, images, integers, raw = networks
    for network, inputs in ((net, images), (integers, raw)):
        lbq.save_network(network, tmp_path / "net.lbq")
        expected = lbq.run_network(network, inputs)
        assert torch.equal(
            lbq.run_network(lbq.load_network(tmp_path / "net.lbq"), inputs), expected
        )
        export_pt2(network, tmp_path / "net.pt2")
        program = torch.export.load(tmp_path / "net.pt2").module()
        assert torch.equal(program(inputs), expected)
    export_nir(net, tmp_path / "net.nir")
    again = import_nir(tmp_path / "net.nir")
    torch.testing.assert_close(again(images), net(images), rtol=1e-5, atol=1e-5)


def test_a_mean_that_more_is_computed_with_is_refused_by_path(tmp_path):
    layers = (nn.Linear(6, 8), lbq.BurstLIF(), nn.Linear(8, 5), MeanOverTime(), nn.Linear(5, 2))
    net = lbq.lower(nn.Sequential(*layers).eval(), torch.randn(2, 3, 6))
    for export, name in ((export_onnx, "net.onnx"), (export_nir, "net.nir")):
        with pytest.raises(LoweringError, match=r"readout cannot be .*last"):
            export(net, tmp_path / name)


@pytest.mark.parametrize("write", [lbq.save_network, export_onnx, export_nir, export_pt2])
def test_a_failing_disk_leaves_the_old_file(write, tmp_path, monkeypatch):
    layers = (nn.Linear(6, 8), lbq.BurstLIF(), nn.Linear(8, 5), MeanOverTime())
    net = lbq.lower(nn.Sequential(*layers).eval(), torch.randn(2, 3, 6))
    (tmp_path / "net").write_text("old")

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write(net, tmp_path / "net")
    assert (tmp_path / "net").read_text() == "old"
    assert os.listdir(tmp_path) == ["net"]
