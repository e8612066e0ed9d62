import pytest
import torch

import lbq
from lbq import neurons
from lbq.errors import StepError
from lbq.lowering.neuron_thresholds import as_level_neuron

NEURONS = {
    "burst": lambda: lbq.BurstLIF(5, step=lbq.LearnedStep(0.31)),
    "per channel": lambda: lbq.BurstLIF(3, step=lbq.LearnedStep(0.4, channels=6)),
    "level reset": lambda: lbq.BurstLIF(7, step=0.2, reset_mode="level", reset=0.7),
    "no reset": lambda: lbq.BurstLIF(255, step=0.01, reset_mode="none", decay=1.0),
    "binary": lambda: neurons.BinaryLIF(threshold=0.5, decay=0.3),
    "ternary": lambda: neurons.TernaryLIF(step=neurons.LearnedStep(0.4)),
    "original ternary": neurons.OriginalTernaryLIF,
    "integer": lambda: neurons.IntegerLIF(4),
    "multilevel": neurons.MultiLevelLIF,
    "lmht": lambda: neurons.LMHT(4, max_level=3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NEURONS)
def test_thresholds_emit_the_levels_of_its_neuron_bit_for_bit(name, dtype):
    torch.manual_seed(0)
    neuron = NEURONS[name]().to(dtype)
    currents = torch.randn(4, 50, 6, 7, dtype=dtype) * 2
    currents[:, :10] = (currents[:, :10] * 4).round() / 4  # meet thresholds exactly
    node, step = as_level_neuron(neuron, path="n", dtype=dtype)
    bursts, levels, _ = neuron.scan(currents, None)
    assert torch.equal(node(currents), levels)
    scaled = levels.to(torch.float64) * step.reshape(-1, *[1] * (1 if step.numel() > 1 else 0))
    torch.testing.assert_close(scaled, bursts.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("step", [1e-5, 1e5])
def test_a_degenerate_step_is_not_taken_out(step):  # P12
    with pytest.raises(StepError, match=r"stages\.1"):
        as_level_neuron(lbq.BurstLIF(step=step), path="stages.1", dtype=torch.float32)
