import os

import numpy as np
import pytest

from lbq.errors import FormatError
from lbq.export.onnx_graph import Graph, read_onnx_metadata
from lbq.export.onnx_run import run_onnx


def doubled(path, metadata):
    """Write a graph that doubles what enters."""
    graph = Graph()
    value = graph.input("input", np.float32, ("B", 2))
    with graph.at("somewhere"):
        total = graph.op("Add", value, value)
    graph.output(total, "output", np.float32, ("B", 2))
    graph.op("Neg", graph.op("Mul", value, graph.constant(7, np.float32)))  # nobody reads it
    graph.save(path, metadata)


WHOLE = {
    "timesteps": 3,
    "input_shape": [2],
    "takes_frames": False,
    "is_integer": True,
    "logit_scale": 0.5,
    "origin": {},
    "style": "exact",
    "levels": [],
}


def test_equal_constants_are_stored_once():
    graph = Graph()
    assert graph.constant(np.ones(3), np.int32) == graph.constant(np.array([1, 1, 1]), np.int32)
    assert graph.constant(np.ones(3), np.int32) != graph.constant(np.ones(3), np.float32)
    assert graph.constant(np.ones(3), np.int32) != graph.constant(np.ones((3, 1)), np.int32)


def test_a_graph_runs_and_tells_its_facts(tmp_path):
    doubled(tmp_path / "net.onnx", WHOLE)
    values = np.array([[1, 2], [3, 4]], dtype=np.float32)
    np.testing.assert_array_equal(run_onnx(tmp_path / "net.onnx", values), 2 * values)
    assert read_onnx_metadata(tmp_path / "net.onnx") == WHOLE
    written = (tmp_path / "net.onnx").read_bytes()
    assert not any(unread in written for unread in (b"constant", b"Mul", b"Neg"))


@pytest.mark.parametrize(
    "metadata", [{}, {**WHOLE, "levels": 3}, {**WHOLE, "timesteps": "3"}, {**WHOLE, "other": 1}]
)
def test_facts_that_are_none_are_refused(metadata, tmp_path):
    doubled(tmp_path / "net.onnx", metadata)
    with pytest.raises(FormatError, match=r"net\.onnx"):
        read_onnx_metadata(tmp_path / "net.onnx")


def test_a_graph_that_is_wrong_is_not_written(tmp_path):
    graph = Graph()
    value = graph.input("input", np.float32, ("B", 2))
    graph.output(graph.op("NoSuchOperator", value), "output", np.float32, ("B", 2))
    with pytest.raises(Exception, match="NoSuchOperator"):
        graph.save(tmp_path / "net.onnx", {})
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("not an ONNX file")
    with pytest.raises(FormatError, match=r"net\.onnx is no ONNX file"):
        read_onnx_metadata(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="not written by"):
        read_onnx_metadata(path)


def test_permissions_are_those_of_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        doubled(tmp_path / "net.onnx", WHOLE)
    finally:
        os.umask(before)
    assert (tmp_path / "net.onnx").stat().st_mode & 0o777 == 0o600
