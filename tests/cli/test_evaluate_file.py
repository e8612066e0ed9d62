import json

import pytest
import torch

import lbq
from lbq.cli.main import main
from lbq.cli.samples import open_samples, pieces
from lbq.kernels.native import isa
from lbq.shelf import recipe_of

pytestmark = [
    pytest.mark.as_shipped,  # torch.fx and torch.export cannot trace the annotation checks
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def evaluated(capsys, *words):
    assert main(["eval", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_backend_counts_alike(bundle, capsys):
    dense = evaluated(capsys, bundle)
    assert dense["count"] == 30
    assert dense["accuracy"] == dense["correct"] / 30
    assert evaluated(capsys, bundle, "--backend", "unary") == dense
    assert evaluated(capsys, bundle, "--backend", "planes") == dense
    if isa() is not None:  # CI builds the engine
        assert evaluated(capsys, bundle, "--backend", "native") == dense
    assert evaluated(capsys, bundle, "--limit", "7")["count"] == 7


def test_a_network_of_the_shelf_goes_by_its_name(tmp_path, capsys):
    words = ["eval", "pocket-cifar10", "--data", "synthetic", "--cache", str(tmp_path), "--json"]
    assert main([*words, "--limit", "30"]) == 0
    found = json.loads(capsys.readouterr().out)
    recipe = recipe_of("pocket-cifar10")
    data = open_samples(recipe, source="synthetic", cache=tmp_path)
    (piece,) = pieces(data, limit=30, batch=30)
    with torch.no_grad():
        answers = lbq.pretrained("pocket-cifar10")(piece.real).argmax(1)
    assert (found["correct"], found["count"]) == (int((answers == piece.target).sum()), 30)
    assert main([*words, "--backend", "planes"]) == 1
    assert "--backend is for .lbq files, not pocket-cifar10" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_every_engine_counts_alike(bundle, tmp_path, capsys, to):
    expected = evaluated(capsys, bundle)
    out = tmp_path / f"net.{to}"
    assert main(["export", str(bundle), "--to", to, "--out", str(out)]) == 0
    capsys.readouterr()
    assert evaluated(capsys, out) == expected
    if to == "onnx":
        assert evaluated(capsys, out, "--engine", "openvino") == expected


def test_a_float_network_counts_as_its_run(trained, tmp_path, capsys):
    expected = evaluated(capsys, trained)
    out = tmp_path / "net.nir"
    assert main(["export", str(trained), "--to", "nir", "--out", str(out)]) == 0
    capsys.readouterr()
    found = evaluated(capsys, out)
    assert found["count"] == expected["count"]
    assert abs(found["correct"] - expected["correct"]) <= 1  # float32 rounds in another order


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("net.lbq", ["--engine", "openvino"], "--engine runs .onnx"),
        ("net.pt2", ["--backend", "unary"], "--backend is for .lbq"),
        ("net.lbq", ["--step", "3"], "--step, --device, --devices and --workers are for runs"),
        ("net.lbq", ["--workers", "2"], "are for runs"),
        ("run", ["--limit", "3"], "are for files"),
    ],
)
def test_flags_of_others_are_a_mistake(tmp_path, capsys, name, more, why):
    (tmp_path / name).touch()
    assert main(["eval", str(tmp_path / name), *more]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["lbq", "onnx", "pt2", "nir"])
def test_a_file_that_is_not_there_or_something_else_is_a_mistake(tmp_path, capsys, suffix):
    path = tmp_path / f"net.{suffix}"
    assert main(["eval", str(path)]) == 1
    path.write_bytes(b"hello")
    assert main(["eval", str(path)]) == 1
    assert "Traceback" not in capsys.readouterr().err
