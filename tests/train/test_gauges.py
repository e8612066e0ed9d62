import time

import pytest
import torch

from lbq.neurons import BurstLIF
from lbq.train.gauges import Gauges


def test_averages_are_over_the_steps_since_the_last_reading():
    gauges = Gauges(10)
    for loss, correct in ((1.0, 2.0), (3.0, 4.0)):
        gauges.batch_arrived()
        gauges.step_done(loss=loss, correct=correct)
    record = gauges.read()
    assert record["loss"] == 2.0
    assert record["accuracy"] == 0.3
    gauges.step_done(loss=7.0, correct=10.0)
    assert gauges.read()["loss"] == 7.0


def test_waiting_for_data_is_told_from_working(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 4.0, 4.0])  # made, batch there, step done, read, read
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    gauges = Gauges(10)
    gauges.batch_arrived()
    gauges.step_done(loss=1.0, correct=0.0)
    record = gauges.read()
    assert record["waiting_for_data"] == 0.25
    assert record["samples_per_s"] == 2.5


def test_activity_is_the_share_of_neurons_with_a_level():
    gauges, neuron = Gauges(1), BurstLIF(step=1.0)
    with gauges.watching(neuron):
        neuron(torch.tensor([[[0.0, 1.0, 2.0, -1.0]], [[0.0, 0.0, 0.0, 0.0]]]))
    gauges.step_done(loss=1.0, correct=0.0)
    # at the second instant half of what is left of 2 - 1 is below the step
    assert gauges.read()["active"] == pytest.approx(2 / 8)
    gauges.step_done(loss=1.0, correct=0.0)
    assert "active" not in gauges.read()
