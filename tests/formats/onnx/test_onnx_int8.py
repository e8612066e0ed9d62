"""Int8 convolutions: which nodes are fused, how thresholds become roundings, what engines run."""

from collections import Counter

import numpy as np
import pytest
import torch
from bundles import with_operator
from onnx_networks import ENGINES, answers, exported_answers, lowered_resnet, num_different

import lbq
from lbq.errors import ParameterError
from lbq.formats.onnx import export_onnx, read_onnx_metadata
from lbq.formats.onnx.int8 import find_fusion_groups, fit_affine, fit_quant_grid
from lbq.graph.operators import Shortcut, Synapse
from lbq.neurons import IntegerLIF


def test_all_neurons_but_the_first_take_their_convolutions():
    net, _ = lowered_resnet(lbq.resnet20, timesteps=1, bits=8)
    groups = find_fusion_groups(net)
    assert set(groups) == {path for path, _ in net.neurons()} - {"stem_neuron"}
    taken = [node for group in groups.values() for node in group.nodes]
    assert len(taken) == len(set(taken))
    shortcuts = {path for path, node in net.operators.items() if isinstance(node, Shortcut)}
    assert shortcuts <= set(taken)


def test_a_joined_projection_gives_the_sum_of_both_branches():
    net, _ = lowered_resnet(lbq.resnet20, timesteps=1, bits=8)
    group = find_fusion_groups(net)["stages.1.0.neuron2"]
    branches = [net.operators[path] for path in group.nodes]
    wide, narrow = sorted(
        (node for node in branches if isinstance(node, Synapse)),
        key=lambda node: -node.weight.shape[2],
    )
    inside = torch.randint(0, 6, (2, wide.weight.shape[1], 8, 8), dtype=torch.uint8)
    before = torch.randint(0, 6, (2, narrow.weight.shape[1], 16, 16), dtype=torch.uint8)
    assert group.strides == ((1, 1), (2, 2))
    joined = torch.cat([inside, before[..., ::2, ::2]], dim=1)
    expected = wide(inside[None]) + narrow(before[None])
    torch.testing.assert_close(group.synapse(joined[None]), expected, rtol=0, atol=0)


def test_a_current_with_a_second_reader_is_not_taken():
    net, _ = lowered_resnet(lbq.resnet20, timesteps=1, bits=8, block="sew")
    readers = Counter(name for node in net.nodes for name in node.inputs)
    groups = find_fusion_groups(net)
    assert groups
    assert all(readers[node] == 1 for group in groups.values() for node in group.nodes)


def count_levels(thresholds, currents):
    """Count thresholds: what a fit must give."""
    return sum((currents >= threshold).astype(int) for threshold in thresholds)


def levels_of(grid, currents, inputs, *, max_level, gain=1):
    """Compute as an engine does: a byte, a sum of bytes, a rounded and clipped level."""
    point = np.rint(grid.scale * (gain * currents + grid.offset))
    byte = (point + grid.zero).clip(0, 255)
    total = (byte - grid.zero + grid.weight * inputs) * grid.unit
    return np.rint(total).clip(0, max_level)


def test_a_shortcut_of_whole_points_loses_nothing():
    steps = np.array([105, 735, 1505])
    thresholds = np.arange(1, 6)[:, None] * steps
    shortcut = steps * 3 // 5
    grid = fit_quant_grid(torch.tensor(thresholds), torch.tensor(shortcut), max_input=5, gain=1)
    assert grid is not None
    assert grid.is_exact.all()
    currents = np.arange(-9000, 9000)[:, None]
    for level in range(6):
        expected = count_levels(thresholds, currents + level * shortcut)
        got = levels_of(grid, currents, level, max_level=5)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("gain", [1, 18])
def test_thresholds_move_by_no_more_than_is_told(gain):
    generator = np.random.default_rng(gain)
    for _ in range(20):
        steps = generator.uniform(300, 2000, 3)
        thresholds = np.ceil(np.arange(1, 6)[:, None] * steps)
        shortcut = np.rint(steps * generator.uniform(0.4, 1.3))
        grid = fit_quant_grid(
            torch.tensor(thresholds), torch.tensor(shortcut), max_input=5, gain=gain
        )
        assert grid is not None
        assert grid.error < 1 / 16
        currents = np.arange(-13000, 13000)[:, None]
        for level in range(6):
            total = currents + level * shortcut
            got = levels_of(grid, currents, level, max_level=5, gain=gain)
            slack = grid.error * thresholds[-1] / 5 + 1
            is_near = (np.abs(total[None] - thresholds[:, None]) <= slack).any(0)
            is_moved = got != count_levels(thresholds, total)
            assert not (is_moved & ~is_near).any()
            assert not is_moved[:, grid.is_exact].any()


def test_levels_that_fill_the_byte_have_no_lattice():
    thresholds = 100 * torch.arange(1, 6).reshape(-1, 1)
    assert fit_quant_grid(thresholds, torch.tensor([100]), max_input=255, gain=1) is None


def test_a_fitted_line_rounds_to_the_level_of_every_current():
    thresholds = torch.tensor([[64, 700], [127, 1400], [190, 2100]], dtype=torch.int32)
    line = fit_affine(thresholds, gain=18)
    assert line.is_exact.all()
    currents = np.arange(-500, 3000)[:, None]
    rounded = np.rint((18 * currents + line.offset) * line.scale).clip(0, 3)
    np.testing.assert_array_equal(rounded, count_levels(thresholds.numpy(), currents))


def test_uneven_thresholds_are_reported():
    straight, crooked = [100, 200, 300], [100, 250, 300]
    thresholds = torch.tensor([straight, crooked], dtype=torch.int32).T
    line = fit_affine(thresholds, gain=1)
    assert line.is_exact.tolist() == [True, False]
    assert line.error > 1 / 8  # of a step
    assert fit_affine(thresholds[:, :1], gain=1).error == 0


HALF_A_STEP = {"neuron": lambda channels: IntegerLIF(4)}
"""Its thresholds begin at half a step."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options", [{}, {"block": "sew"}, HALF_A_STEP], ids=["plain", "sew", "I-LIF"]
)
def test_four_bit_weights_leave_room_for_the_same_bits(options, engine):
    net, raw = lowered_resnet(lbq.resnet20, timesteps=1, bits=4, **options)
    got = exported_answers(net, raw, engine=engine, style="int8")
    assert not num_different(got, answers(net, raw))


def test_inexact_channels_are_counted_in_the_file(tmp_path):
    net, _ = lowered_resnet(lbq.resnet20, timesteps=1, bits=4)
    export_onnx(net, tmp_path / "net.onnx", style="int8")
    assert read_onnx_metadata(tmp_path / "net.onnx")["num_inexact_channels"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_eight_bit_weights_move_few_levels(engine):
    net, raw = lowered_resnet(lbq.resnet20, timesteps=1, bits=8)
    expected = answers(net, raw)
    moved = num_different(exported_answers(net, raw, engine=engine, style="int8"), expected)
    moved.pop("logits", None)
    assert sum(moved.values()) <= 1e-3 * sum(levels.size for levels in expected.values())


def test_a_crooked_neuron_keeps_its_bits(tmp_path):
    net, raw = lowered_resnet(lbq.resnet20, timesteps=1, bits=4)
    path, neuron = next((p, n) for p, n in net.neurons() if p.endswith("neuron1"))
    thresholds = neuron.thresholds.clone()
    thresholds[1] += (thresholds[2] - thresholds[1]) // 2
    net = with_operator(net, path, thresholds=thresholds)
    got = exported_answers(net, raw, engine="onnxruntime", style="int8")
    assert not num_different(got, answers(net, raw)), path
    export_onnx(net, tmp_path / "net.onnx", style="int8")
    assert operators_of_onnxruntime(tmp_path / "net.onnx")["QLinearConv"] == 10  # of 11


@pytest.mark.parametrize("engine", ENGINES)
def test_lossy_sums_move_few_levels_of_a_block(engine):
    net, raw = lowered_resnet(lbq.resnet20, timesteps=1, bits=8)
    for path, neuron in net.neurons():  # steps as training leaves them: no two alike
        if path.endswith("neuron2"):
            thresholds = (neuron.thresholds * (0.6 + 0.07 * int(path[-9]))).ceil().int()
            net = with_operator(net, path, thresholds=thresholds)
    expected = answers(net, raw)
    got = exported_answers(net, raw, engine=engine, style="int8-lossy")
    first = "stages.0.0.neuron2"  # behind it, moved levels move others
    num_moved = num_different({first: got[first]}, {first: expected[first]}).get(first, 0)
    assert num_moved <= 0.01 * expected[first].size


def operators_of_onnxruntime(path):
    """Count the operators that ONNX Runtime makes of a file."""
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimised"))
    options.log_severity_level = 3  # it warns that the optimised file belongs to this processor
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    made = onnx.load(options.optimized_model_filepath).graph.node
    return Counter(node.op_type for node in made)


@pytest.mark.parametrize(
    ("style", "num_fused", "num_sums"), [("int8", 11, 0), ("int8-lossy", 18, 7)]
)
def test_onnxruntime_fuses_convolutions(style, num_fused, num_sums, tmp_path):
    net, _ = lowered_resnet(lbq.resnet20, timesteps=1, bits=8)
    export_onnx(net, tmp_path / "net.onnx", style=style)
    found = operators_of_onnxruntime(tmp_path / "net.onnx")
    convolutions = (found["QLinearConv"], found["Conv"] + found["FusedConv"], found["QLinearAdd"])
    assert convolutions == (num_fused, 19 - num_fused, num_sums)


@pytest.mark.parametrize("style", ["int8", "int8-lossy"])
def test_openvino_convolves_bytes_behind_the_first_neuron(style, tmp_path):
    openvino = pytest.importorskip("openvino")
    net, _ = lowered_resnet(lbq.resnet20, timesteps=1, bits=8)
    export_onnx(net, tmp_path / "net.onnx", style=style)
    model = openvino.Core().compile_model(str(tmp_path / "net.onnx"), "CPU")
    made = [node.get_rt_info() for node in model.get_runtime_model().get_ops()]
    precisions = Counter(
        info["runtimePrecision"].astype(str)
        for info in made
        if info["layerType"].astype(str) == "Convolution"
    )
    assert precisions["u8"] == sum(precisions.values()) - 1 == 18


def test_a_membrane_over_time_is_refused(tmp_path):
    net, _ = lowered_resnet(lbq.resnet20, timesteps=2, bits=8)
    with pytest.raises(ParameterError, match='this one has 2; use style "fast"'):
        export_onnx(net, tmp_path / "net.onnx", style="int8")
