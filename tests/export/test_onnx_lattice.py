import numpy as np
import pytest
import torch

from lbq.export.onnx_lattice import fit_quant_grid


def counted(thresholds, currents):
    """Count rungs: what a grid must give."""
    return sum((currents >= rung).astype(int) for rung in thresholds)


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
        expected = counted(thresholds, currents + level * shortcut)
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
            room = grid.error * thresholds[-1] / 5 + 1
            is_near = (np.abs(total[None] - thresholds[:, None]) <= room).any(0)
            is_moved = got != counted(thresholds, total)
            assert not (is_moved & ~is_near).any()
            assert not is_moved[:, grid.is_exact].any()


def test_levels_that_fill_the_byte_have_no_lattice():
    thresholds = 100 * torch.arange(1, 6).reshape(-1, 1)
    assert fit_quant_grid(thresholds, torch.tensor([100]), max_input=255, gain=1) is None
