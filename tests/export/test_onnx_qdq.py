import numpy as np
import pytest
import torch
from exported import ENGINES, answers, exported_answers, integer_resnet, num_different

import lbq
from lbq.errors import ParameterError
from lbq.export.onnx import export_onnx
from lbq.export.onnx_graph import read_onnx_facts
from lbq.export.onnx_qdq import fit_ladder

pytestmark = pytest.mark.as_shipped  # lowering traces, and annotation checks stop tracers


def counted(ladder, currents):
    """Count rungs: what the line must give."""
    return sum((currents[:, None] >= rung).astype(int) for rung in ladder.numpy())


def test_a_fitted_line_rounds_to_the_level_of_every_current():
    ladder = torch.tensor([[64, 700], [127, 1400], [190, 2100]], dtype=torch.int32)
    line = fit_ladder(ladder, gain=18)
    assert line.is_exact.all()
    currents = np.arange(-500, 3000)
    rounded = np.rint((18 * currents[:, None] + line.offset) * line.scale).clip(0, 3)
    np.testing.assert_array_equal(rounded, counted(ladder, currents))


def test_a_crooked_ladder_is_told():
    straight, crooked = [100, 200, 300], [100, 250, 300]
    ladder = torch.tensor([straight, crooked], dtype=torch.int32).T
    assert fit_ladder(ladder, gain=1).is_exact.tolist() == [True, False]


@pytest.mark.parametrize("engine", ENGINES)
def test_four_bit_weights_leave_room_for_the_same_bits(engine, tmp_path):
    net, raw = integer_resnet(lbq.resnet20, timesteps=1, bits=4)
    got = exported_answers(net, raw, engine=engine, style="int8")
    assert not num_different(got, answers(net, raw))
    export_onnx(net, tmp_path / "net.onnx", style="int8")
    assert read_onnx_facts(tmp_path / "net.onnx")["num_inexact_channels"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_eight_bit_weights_move_few_levels(engine):
    net, raw = integer_resnet(lbq.resnet20, timesteps=1, bits=8)
    expected = answers(net, raw)
    moved = num_different(exported_answers(net, raw, engine=engine, style="int8"), expected)
    moved.pop("logits", None)
    assert sum(moved.values()) <= 1e-3 * sum(levels.size for levels in expected.values())


def test_a_membrane_over_time_is_refused(tmp_path):
    net, _ = integer_resnet(lbq.resnet20, timesteps=2, bits=8)
    with pytest.raises(ParameterError, match='This one has 2; use style "fast"'):
        export_onnx(net, tmp_path / "net.onnx", style="int8")
