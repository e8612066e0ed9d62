"""``lbq.export`` writes what the suffix says, and the file gives the network's own integers."""

import numpy as np
import pytest
import torch
from bundles import tiny_network

import lbq
from lbq.errors import LoweringError, ParameterError
from lbq.formats import import_nir, run_onnx, run_pt2


@pytest.mark.parametrize("run_file", [run_onnx, run_pt2], ids=["onnx", "pt2"])
def test_programs_give_the_integers_of_the_network(run_file, tmp_path):
    network = tiny_network()
    path = tmp_path / f"net.{run_file.__name__.removeprefix('run_')}"
    lbq.export(network, path)
    inputs = torch.randint(0, 256, network.example(3).shape, dtype=torch.uint8)
    found = np.asarray(run_file(path, inputs))
    assert np.array_equal(found, lbq.run_network(network, inputs, backend="dense").numpy())


def test_a_bundle_is_the_file_that_save_writes(tmp_path):
    network = tiny_network()
    lbq.export(network, str(tmp_path / "a.lbq"))
    lbq.save_network(network, tmp_path / "b.lbq")
    assert (tmp_path / "a.lbq").read_bytes() == (tmp_path / "b.lbq").read_bytes()


def test_nir_takes_real_numbers_only(tmp_path):
    network = lbq.lower(_mlp(), torch.randn(3, 1, 4))
    lbq.export(network, tmp_path / "net.nir")
    inputs = torch.randn(3, 2, 4)
    assert torch.allclose(
        lbq.run_network(import_nir(tmp_path / "net.nir"), inputs), lbq.run_network(network, inputs)
    )
    with pytest.raises(LoweringError, match="real numbers"):
        lbq.export(tiny_network(), tmp_path / "integers.nir")
    assert not (tmp_path / "integers.nir").exists()


@pytest.mark.parametrize("name", ["net", "net.tflite", "net.ONNX", "net.onnx.gz", ".onnx"])
def test_other_suffixes_are_refused_with_the_list(name, tmp_path):
    with pytest.raises(
        ParameterError, match=r"\.lbq, \.nir, \.onnx, \.pt2, \.c, \.v, got .*" + name
    ):
        lbq.export(tiny_network(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_trained_network_is_refused_with_the_call_that_is_missing(tmp_path):
    with pytest.raises(ParameterError, match=r"got a Sequential; convert it first with lbq\."):
        lbq.export(_mlp(), tmp_path / "net.onnx")


def test_the_function_and_the_package_have_names_of_their_own():
    import lbq.export  # noqa: PLC0415 -- the module of the function

    assert callable(lbq.export)
    assert lbq.formats.export_onnx


def _mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), lbq.BurstLIF(), torch.nn.Linear(8, 3), lbq.MeanOverTime()
    ).eval()


@pytest.mark.parametrize(
    "name",
    ["module", "wire", "input", "logic", "uwire", "checker", "a\u00e9", "\u0665", "1x", "a b"],
)
def test_names_that_no_tool_reads_are_refused(name, tmp_path):
    with pytest.raises(lbq.LBQError, match=r"keyword of Verilog|letters a to z"):
        lbq.export(tiny_network(), tmp_path / f"{name}.v")
    assert not list(tmp_path.iterdir())
