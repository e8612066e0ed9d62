import sys

import numpy as np
import pytest
from onnx_networks import ENGINES, lowered_resnet

import lbq
from lbq.errors import FormatError, MissingExtraError, ParameterError, ShapeError
from lbq.formats.onnx import OnnxRunner, export_onnx, read_onnx_metadata, run_onnx


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    net, _ = lowered_resnet(lbq.resnet20, timesteps=1, bits=8)
    path = tmp_path_factory.mktemp("export") / "net.onnx"
    export_onnx(net, path)
    return path


@pytest.mark.parametrize("engine", ENGINES)
def test_other_shapes_and_types_are_refused(path, engine):
    runner = OnnxRunner(path, engine=engine, threads=1)
    with pytest.raises(ShapeError, match=r"takes \[B, 3, 16, 16\], got \[1, 3, 8, 8\]"):
        runner(np.zeros((1, 3, 8, 8), dtype=np.uint8))
    with pytest.raises(ShapeError, match="raw pixels or counts as uint8, got float32"):
        runner(np.zeros((1, 3, 16, 16), dtype=np.float32))
    assert runner(np.zeros((2, 3, 16, 16), dtype=np.uint8)).shape == (2, 10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_was_cut_is_told_as_such(path, engine, tmp_path):
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FormatError, match=rf"{engine} cannot load .*cut\.onnx"):
        OnnxRunner(cut, engine=engine)


def test_lists_are_arrays_and_nothing_is_no_batch(path):
    runner = OnnxRunner(path, threads=1)
    with pytest.raises(ShapeError, match=r"one sample or more, got \[0, 3, 16, 16\]"):
        runner(np.zeros((0, 3, 16, 16), dtype=np.uint8))
    with pytest.raises(ShapeError, match=r"takes \[B, 3, 16, 16\], got \[3\]"):
        runner([1, 2, 3])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"there is no file .*net\.onnx"):
        run_onnx(tmp_path / "net.onnx", np.zeros(1, dtype=np.uint8))
    with pytest.raises(FormatError, match=r"net\.onnx cannot be read: No such file"):
        read_onnx_metadata(tmp_path / "net.onnx")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_engine_names_its_package(path, engine, monkeypatch):
    monkeypatch.setitem(sys.modules, engine, None)
    with pytest.raises(MissingExtraError, match=rf"pip install (onnx )?{engine}$"):
        run_onnx(path, np.zeros((1, 3, 16, 16), dtype=np.uint8), engine=engine)


def test_an_engine_that_does_not_exist_is_refused(path):
    with pytest.raises(ParameterError, match="onnxruntime, openvino, got 'tvm'"):
        OnnxRunner(path, engine="tvm")
