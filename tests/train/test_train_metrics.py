import time

import pytest
import torch

from lbq.neurons import BurstLIF
from lbq.train.train_metrics import TrainMetrics


def test_averages_are_over_the_steps_since_the_last_reading():
    metrics = TrainMetrics(10)
    for loss, correct in ((1.0, 2.0), (3.0, 4.0)):
        metrics.batch_ready()
        metrics.update(loss=loss, correct=correct)
    record = metrics.read()
    assert record["loss"] == 2.0
    assert record["accuracy"] == 0.3
    metrics.update(loss=7.0, correct=10.0)
    assert metrics.read()["loss"] == 7.0


def test_waiting_for_data_is_told_from_working(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 4.0, 4.0])  # made, batch there, step done, read, read
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    metrics = TrainMetrics(10)
    metrics.batch_ready()
    metrics.update(loss=1.0, correct=0.0)
    record = metrics.read()
    assert record["waiting_for_data"] == 0.25
    assert record["samples_per_s"] == 2.5


def test_activity_is_the_share_of_neurons_with_a_level():
    metrics, neuron = TrainMetrics(1), BurstLIF(step=1.0)
    with metrics.watching(neuron):
        neuron(torch.tensor([[[0.0, 1.0, 2.0, -1.0]], [[0.0, 0.0, 0.0, 0.0]]]))
    metrics.update(loss=1.0, correct=0.0)
    # at the second instant half of what is left of 2 - 1 is below the step
    assert metrics.read()["active"] == pytest.approx(2 / 8)
    metrics.update(loss=1.0, correct=0.0)
    assert "active" not in metrics.read()
