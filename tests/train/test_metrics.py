import errno
import json
import logging
import os
import sys
import time

import pytest
import torch

from lbq.errors import MissingExtraError
from lbq.neurons import BurstLIF
from lbq.train.metrics import MetricsLog, TensorBoardCallback, TrainMetrics, read_metrics_log


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def log(path):
    return MetricsLog(path)


def events(path):
    return [(record["event"], record["step"]) for record in read_metrics_log(path)]


def test_records_are_read_back_in_order_with_their_time(path, log):
    log({"event": "train", "step": 1, "loss": 0.25})
    log({"event": "train", "step": 2, "loss": 0.125})
    records = list(read_metrics_log(path))
    assert [record["loss"] for record in records] == [0.25, 0.125]
    assert all(record["time"] > 1.7e9 for record in records)


def test_a_number_that_json_does_not_have_is_written_as_text(path, log):
    log({"event": "skip", "step": 1, "loss": float("nan"), "grad_norm": float("inf")})
    record = next(read_metrics_log(path))
    assert (record["loss"], record["grad_norm"]) == ("nan", "inf")


def test_a_partial_line_is_skipped_and_the_next_one_is_not(path):
    MetricsLog(path)({"event": "train", "step": 1})
    with path.open("a") as file:
        file.write('{"event": "train", "st')
    MetricsLog(path)({"event": "train", "step": 3})
    assert events(path) == [("train", 1), ("train", 3)]


def test_steps_that_were_repeated_after_a_crash_are_read_once(path, log):
    for record in [("train", 1), ("train", 2), ("train", 3), ("resume", 1), ("train", 2)]:
        log(dict(zip(("event", "step"), record, strict=True)))
    assert events(path) == [("train", 1), ("resume", 1), ("train", 2)]


def test_a_full_disk_delays_lines_and_warns_once(path, log, monkeypatch, caplog):
    real = os.write

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(os, "write", full)
        log({"event": "train", "step": 1})
        log({"event": "train", "step": 2})
        monkeypatch.setattr(os, "write", real)
    log({"event": "train", "step": 3})
    assert events(path) == [("train", 1), ("train", 2), ("train", 3)]
    assert len(caplog.records) == 1
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_run_without_a_metrics_log_has_no_records(path):
    assert list(read_metrics_log(path)) == []


def test_a_partial_write_repeats_no_line(path, log, monkeypatch):
    real, free = os.write, 150

    def nearly_full(descriptor, data):
        nonlocal free
        if free == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[:free])
        free -= written
        return written

    monkeypatch.setattr(os, "write", nearly_full)
    for step in range(1, 6):  # some are written, one in part, the others wait
        log({"event": "train", "step": step})
    assert path.stat().st_size == 150
    free = 100  # enough for one line and a part of the next
    log({"event": "train", "step": 6})
    monkeypatch.setattr(os, "write", real)
    log({"event": "train", "step": 7})
    assert events(path) == [("train", step) for step in range(1, 8)]


def test_lines_that_are_no_records_are_skipped(path):
    MetricsLog(path)({"event": "train", "step": 1})
    strange = [b"[1, 2]", b'"x"', b"null", b'{"event": 5, "step": "a"}', b'{"event": "resume"}']
    with path.open("ab") as file:
        file.write(b"\n".join([*strange, b"[" * 100_000, b'{"event": "resume", "step": 1e400}\n']))
    MetricsLog(path)({"event": "train", "step": 2})
    assert events(path) == [("train", 1), ("train", 2)]


def test_averages_are_over_the_steps_since_the_last_reset():
    metrics = TrainMetrics(10)
    for loss, correct in ((1.0, 2.0), (3.0, 4.0)):
        metrics.batch_ready()
        metrics.update(loss=loss, correct=correct)
    record = metrics.compute_and_reset()
    assert record["loss"] == 2.0
    assert record["accuracy"] == 0.3
    metrics.update(loss=7.0, correct=10.0)
    assert metrics.compute_and_reset()["loss"] == 7.0


def test_waiting_for_data_is_measured_apart_from_computing(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 4.0, 4.0])  # made, batch there, step done, read, read
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    metrics = TrainMetrics(10)
    metrics.batch_ready()
    metrics.update(loss=1.0, correct=0.0)
    record = metrics.compute_and_reset()
    assert record["waiting_for_data"] == 0.25
    assert record["samples_per_s"] == 2.5


def test_activity_is_the_share_of_neurons_with_a_level():
    metrics, neuron = TrainMetrics(1), BurstLIF(step=1.0)
    with metrics.watch_activity(neuron):
        neuron(torch.tensor([[[0.0, 1.0, 2.0, -1.0]], [[0.0, 0.0, 0.0, 0.0]]]))
    metrics.update(loss=1.0, correct=0.0)
    # at the second timestep half of what is left of 2 - 1 is below the step
    assert metrics.compute_and_reset()["active"] == pytest.approx(2 / 8)
    metrics.update(loss=1.0, correct=0.0)
    assert "active" not in metrics.compute_and_reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_number_of_a_record_becomes_a_scalar(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    charts = TensorBoardCallback(tmp_path)
    charts({"event": "train", "step": 5, "loss": 0.25, "words": "no chart"})
    charts({"event": "evaluation", "step": 7, "accuracy": 0.5})
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == ["evaluation/accuracy", "train/loss"]
    point = found.Scalars("train/loss")[0]
    assert (point.step, point.value) == (5, 0.25)


def test_without_tensorboard_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(MissingExtraError, match="pip install 'datasets>=4' pillow tensorboard"):
        TensorBoardCallback(tmp_path)


@pytest.mark.parametrize("name", ["epoch", "loss", "count", "correct", "accuracy", "parameters"])
@pytest.mark.parametrize("value", ["x", None, [], {}, True, "missing"])
def test_lines_that_no_run_wrote_are_skipped(name, value, tmp_path):
    good = {"event": "evaluation", "step": 4, "epoch": 1, "loss": "nan", "count": 9, "accuracy": 1}
    bad = {**good, name: value}
    if value == "missing":
        bad = {key: good[key] for key in good if key not in (name, "loss")}
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(bad) + "\n" + json.dumps(good) + "\n")
    assert list(read_metrics_log(path)) == [good]
