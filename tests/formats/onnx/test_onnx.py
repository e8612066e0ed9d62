import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from onnx_networks import (
    ENGINES,
    RESNETS,
    answers,
    exported_answers,
    is_lively,
    lowered_resnet,
    num_different,
    random_integers,
    resnet,
)
from torch import nn

import lbq
from lbq.errors import LoweringError, ParameterError
from lbq.formats.onnx import export_onnx, read_onnx_metadata, run_onnx


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "block", "bits", "timesteps", "style"),
    [
        ("resnet20", "basic", 8, 2, "exact"),
        ("resnet20", "basic", 8, 2, "fast"),
        ("resnet20", "sew", 4, 1, "exact"),
        ("resnet18", "sew", 16, 3, "exact"),
        ("resnet19", "basic", 8, 3, "exact"),
        ("resnet19", "basic", 16, 1, "exact"),
    ],
)
def test_integers_are_the_same_bits_in_every_engine(name, block, bits, timesteps, style, engine):
    net, raw = lowered_resnet(RESNETS[name], timesteps=timesteps, bits=bits, block=block)
    expected = answers(net, raw)
    assert is_lively(expected)
    assert not num_different(exported_answers(net, raw, engine=engine, style=style), expected)


@pytest.mark.parametrize("seed", range(int(os.environ.get("LBQ_RANDOM_GRAPHS", "20"))))
def test_a_random_network_of_integers_is_the_same_bits_in_every_engine(seed):
    net, raw = random_integers(seed, bits=(4, 8, 16)[seed % 3])
    expected = answers(net, raw)
    for engine in ENGINES:
        assert not num_different(exported_answers(net, raw, engine=engine), expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("style", ["exact", "fast"])
def test_an_answer_at_every_timestep_is_the_same_bits(style, engine):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), lbq.BurstLIF(step=0.2), nn.Linear(6, 5)).eval()
    raw = torch.randint(0, 256, (3, 7, 4), dtype=torch.uint8)
    net = lbq.to_fixed_point(lbq.lower(model, raw.float()), pixels=None)
    expected = lbq.run_network(net, raw, backend="dense")
    assert expected.shape == (3, 7, 5)
    got = exported_answers(net, raw, engine=engine, style=style)
    assert not num_different(got, answers(net, raw))


def test_real_numbers_have_one_style(tmp_path):
    net = lbq.lower(lbq.resnet20(10, width=1 / 32).eval(), torch.zeros(1, 3, 8, 8))
    with pytest.raises(ParameterError, match="has one style"):
        export_onnx(net, tmp_path / "net.onnx", style="fast")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_network_of_real_numbers_keeps_its_answers(engine):
    net, images, _ = resnet(lbq.resnet20, timesteps=2)
    got, expected = exported_answers(net, images, engine=engine), answers(net, images)
    np.testing.assert_allclose(got.pop("logits"), expected.pop("logits"), rtol=0, atol=1e-4)
    flipped = sum(num_different(got, expected).values())
    assert flipped <= 1e-4 * sum(levels.size for levels in expected.values())


def test_the_batch_is_free(tmp_path):
    net, raw = lowered_resnet(lbq.resnet19, timesteps=2, bits=8)
    export_onnx(net, tmp_path / "net.onnx")
    whole = run_onnx(tmp_path / "net.onnx", raw.numpy())
    for b in range(raw.shape[1]):
        one = run_onnx(tmp_path / "net.onnx", raw[:, b : b + 1].numpy())
        np.testing.assert_array_equal(one, whole[b : b + 1])


def test_a_file_tells_where_it_came_from(tmp_path):
    net, _ = lowered_resnet(lbq.resnet20, timesteps=2, bits=8)
    net = replace(net, origin={"recipe": "tiny", "accuracy": 0.5})
    export_onnx(net, tmp_path / "net.onnx", style="fast")
    metadata = read_onnx_metadata(tmp_path / "net.onnx")
    assert metadata["origin"] == net.origin
    assert metadata["logit_scale"] == net.logit_scale
    assert (metadata["timesteps"], metadata["input_shape"]) == (2, [3, 16, 16])
    assert (metadata["is_integer"], metadata["style"]) == (True, "fast")


def test_a_refused_export_leaves_the_old_file(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("old")
    net, _, _ = resnet(lbq.resnet20, timesteps=1)
    with pytest.raises(LoweringError, match=r"stem.*float64"):
        export_onnx(net.double(), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["net.onnx"]


def test_a_fast_file_whose_integers_float32_would_round_is_refused(tmp_path):
    net, _ = lowered_resnet(lbq.resnet19, timesteps=2, bits=16)
    with pytest.raises(LoweringError, match=r'stem\.1\.0 .*2\*\*24.*style="exact"'):
        export_onnx(net, tmp_path / "net.onnx", style="fast")


def test_a_style_that_does_not_exist_is_refused(tmp_path):
    net, _, _ = resnet(lbq.resnet20, timesteps=1)
    with pytest.raises(ParameterError, match="exact, fast, int8"):
        export_onnx(net, tmp_path / "net.onnx", style="quick")
