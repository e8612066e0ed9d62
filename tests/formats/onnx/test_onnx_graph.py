"""ONNX graphs under construction: metadata, values over time, threshold search."""

import json

import numpy as np
import onnx
import openvino
import pytest
import torch
from onnx_networks import ENGINES
from torch import nn

import lbq
from lbq.errors import FormatError
from lbq.formats.onnx import OnnxRunner, export_onnx, run_onnx
from lbq.formats.onnx.graph import Graph, ThresholdSearch, TimedValue, read_onnx_metadata, stack


def doubled(path, metadata):
    """Write a graph that doubles what enters."""
    graph = Graph()
    value = graph.input("input", np.float32, ("B", 2))
    with graph.at("somewhere"):
        total = graph.op("Add", value, value)
    graph.output(total, "logits", np.float32, ("B", 2))
    graph.op("Neg", graph.op("Mul", value, graph.constant(7, np.float32)))  # unused
    graph.save(path, metadata)


WHOLE = {
    "timesteps": 3,
    "input_shape": [2],
    "takes_frames": False,
    "is_integer": True,
    "logit_scale": 0.5,
    "outputs": ["readout"],
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
    with pytest.raises(FormatError, match=r"net\.onnx is not an ONNX file"):
        read_onnx_metadata(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="not written by"):
        read_onnx_metadata(path)


@pytest.mark.parametrize("timesteps", [1, 3])
def test_instants_and_batches_are_two_forms_of_one_signal(tmp_path, timesteps):
    graph = Graph()
    value = graph.input("input", np.float32, ("B", 2))
    folded = TimedValue("moving", (2,), timesteps, folded=value)
    again = TimedValue("moving", (2,), timesteps, instants=folded.by_instant(graph))
    assert folded.by_instant(graph) is folded.by_instant(graph)  # made once
    assert again.batch(graph) == again.batch(graph)
    graph.output(stack(graph, again.by_instant(graph)), "logits", np.float32, (timesteps, "B", 2))
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
    moving = shown.with_all_instants(graph)
    assert moving.time == "moving"
    assert moving.batch(graph) != value
    assert moving.with_all_instants(graph) is moving


@pytest.fixture(scope="module", params=[255, 100])
def networks(request):
    """A network of many levels per channel, in real numbers and in integers, and bytes."""
    torch.manual_seed(0)
    step = lbq.LearnedStep(0.02, channels=4)
    with torch.no_grad():
        for raw in step.parameters():
            raw.add_(0.3 * torch.rand_like(raw))
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), lbq.RepeatOverTime(2),
        lbq.BurstLIF(request.param, step=step),
        lbq.OverTime(nn.Flatten(), nn.Linear(144, 10)), lbq.MeanOverTime(),
    ).eval()  # fmt: skip
    raw = torch.randint(0, 256, (3, 3, 6, 6), dtype=torch.uint8)
    real = lbq.lower(model, torch.zeros(1, 3, 6, 6))
    pixels = lbq.Pixels(mean=(0.5,) * 3, std=(0.25,) * 3)
    return real, lbq.to_fixed_point(real, pixels=pixels), raw


@pytest.mark.parametrize("style", ["exact", "fast"])
def test_many_levels_need_few_operators_and_are_the_same_bits(networks, style, tmp_path):
    _, net, raw = networks
    seen = {}
    logits = lbq.run_network(
        net, raw, backend="dense", watch=lambda path, t, level: seen.update({(path, t): level})
    )
    export_onnx(net, tmp_path / "net.onnx", style=style, outputs_levels=True)
    assert len(onnx.load(tmp_path / "net.onnx").graph.node) < 250
    [path] = [path for path, _ in net.neurons()]
    for engine in ENGINES:
        found = OnnxRunner(tmp_path / "net.onnx", engine=engine).run_all(raw.numpy())
        for t in range(net.timesteps):
            np.testing.assert_array_equal(found[path][t], seen[path, t].numpy())
        np.testing.assert_array_equal(found["logits"], logits.numpy())
    assert len(torch.stack(list(seen.values())).unique()) > 60


def test_many_levels_of_real_numbers(networks, tmp_path):
    net, _, raw = networks
    images = (raw / 255 - 0.5) / 0.25
    export_onnx(net, tmp_path / "net.onnx")
    assert len(onnx.load(tmp_path / "net.onnx").graph.node) < 250
    for engine in ENGINES:
        found = run_onnx(tmp_path / "net.onnx", images.numpy(), engine=engine)
        np.testing.assert_allclose(
            found, lbq.run_network(net, images).numpy(), rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("num", [17, 31, 32, 100, 255])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_integer_around_every_threshold_is_counted(num, channels, engine, tmp_path):
    generator = torch.Generator().manual_seed(num)
    steps = torch.randint(0, 2**22, (num, channels), generator=generator)  # some come twice
    steps[::5] = 0
    thresholds = (steps.cumsum(0) + 1).clamp(max=2**30)
    graph = Graph()
    value = graph.input("input", np.int32, ("B", 3))
    search = ThresholdSearch(graph, thresholds, shape=(3,), dtype=np.int32)
    zero = graph.constant(0, np.int32)

    def reaches(membrane, threshold):  # OpenVINO compares beyond 2**24 by a difference only
        return graph.op("GreaterOrEqual", graph.op("Sub", membrane, threshold), zero)

    graph.output(search.count(value, reaches), "output", np.int32, ("B", 3))
    graph.save(tmp_path / "net.onnx", {})
    wide = thresholds.expand(-1, 3)
    rows = torch.cat([wide - 1, wide, wide + 1, torch.zeros(1, 3).long(), wide[-1:] + 2**29])
    runner = OnnxRunner(tmp_path / "net.onnx", engine=engine)
    found = runner._run(rows.int().numpy())["output"]  # takes int32, unlike exported networks
    expected = (rows[:, None] >= wide).sum(1)
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize(("style", "is_said"), [("fast", True), ("exact", False)])
def test_what_openvino_must_be_told_is_logged_and_written(
    networks, style, is_said, tmp_path, caplog
):
    _, net, _ = networks
    export_onnx(net, tmp_path / "net.onnx", style=style)
    assert ("INFERENCE_PRECISION_HINT=f32" in caplog.text) == is_said
    said = {fact.key: fact.value for fact in onnx.load(tmp_path / "net.onnx").metadata_props}
    model = openvino.Core().compile_model(
        tmp_path / "net.onnx", "CPU", json.loads(said["openvino_config"])
    )
    assert model.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
