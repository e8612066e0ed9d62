import numpy as np
import pytest

from lbq.export.onnx_graph import Graph
from lbq.export.onnx_run import run_onnx
from lbq.export.onnx_signal import TimedValue, stack


@pytest.mark.parametrize("timesteps", [1, 3])
def test_instants_and_batches_are_two_forms_of_one_signal(tmp_path, timesteps):
    graph = Graph()
    value = graph.input("input", np.float32, ("B", 2))
    folded = TimedValue("moving", (2,), timesteps, folded=value)
    again = TimedValue("moving", (2,), timesteps, instants=folded.by_instant(graph))
    assert folded.by_instant(graph) is folded.by_instant(graph)  # made once
    assert again.batch(graph) == again.batch(graph)
    graph.output(stack(graph, again.by_instant(graph)), "output", np.float32, (timesteps, "B", 2))
    graph.save(tmp_path / "net.onnx", {})
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    got = run_onnx(tmp_path / "net.onnx", values)
    np.testing.assert_array_equal(got, values.reshape(timesteps, -1, 2))


def test_a_shown_signal_is_one_value_until_all_instants_are_asked_for():
    graph = Graph()
    value = graph.input("input", np.float32, ("B", 2))
    shown = TimedValue("shown", (2,), 3, folded=value)
    assert shown.by_instant(graph) == [value] * 3
    assert shown.batch(graph) == value
    assert shown.all_instants(graph) != value
