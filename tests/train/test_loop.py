"""What a loop does between the steps; how runs begin and end is in test_engine.py."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from lbq.train import loop
from lbq.train.engine import RunOptions, train
from lbq.train.metrics import read_metrics_log

OPTIONS = RunOptions(device="cpu", log_every=1, cache=Path("/nonexistent"))


def records(out, event):
    return [r for r in read_metrics_log(out / "metrics.jsonl") if r["event"] == event]


def test_the_learning_rate_follows_its_schedule(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, OPTIONS)
    rates = [record["lr"] for record in records(tmp_path, "train")]
    assert rates[0] == 0.0
    assert rates[2] == pytest.approx(0.05 * 0.5)
    assert max(rates) == rates[4]
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_evaluations_come_as_often_as_asked_and_after_the_last_epoch(tiny, tmp_path):
    train(tiny.tiny_recipe(epochs=5, evaluate_every=2), tmp_path, OPTIONS)
    found = records(tmp_path, "evaluation")
    assert [record["epoch"] for record in found] == [2, 4, 5]
    best = max(record["accuracy"] for record in found)
    assert found[-1]["best_on_test_set"]["accuracy"] == best


def test_checkpoints_come_every_so_many_steps_and_at_the_end(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, replace(OPTIONS, save_every_steps=5))
    assert [record["step"] for record in records(tmp_path, "checkpoint")] == [5, 10, 12]


def test_a_signal_between_steps_saves_the_step_that_was_reached(tiny, tmp_path):
    def interrupt(record):
        if record["event"] == "train" and record["step"] == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    outcome = train(tiny.tiny_recipe(), tmp_path, OPTIONS, callbacks=[interrupt])
    assert (outcome.ending, outcome.exit_code) == ("stopped", 143)
    assert outcome.step == 7  # the next step sees it, finishes, and is saved
    assert records(tmp_path, "checkpoint")[-1]["step"] == 7
    assert records(tmp_path, "stop")[-1]["step"] == 7


def test_a_signal_during_an_evaluation_is_heard_and_the_evaluation_made_up_for(
    tiny, tmp_path, monkeypatch
):
    real = loop.count_correct

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "count_correct", interrupted)
        outcome = train(tiny.tiny_recipe(epochs=1), tmp_path, OPTIONS)
    assert (outcome.ending, outcome.step, outcome.exit_code) == ("stopped", 4, 143)
    outcome = train(tiny.tiny_recipe(epochs=1), tmp_path, OPTIONS)
    assert outcome.ending == "finished"
    assert [found.step for found in outcome.evaluations] == [4]


def test_workers_that_prepare_batches_change_no_bit(tiny, tmp_path):
    for workers in (0, 2):
        options = replace(OPTIONS, workers=workers)
        train(tiny.tiny_recipe(epochs=1), tmp_path / str(workers), options)
    assert tiny.final_hashes(tmp_path / "0") == tiny.final_hashes(tmp_path / "2")


def test_levels_are_watched_in_the_steps_that_are_told(tiny, tmp_path):
    train(tiny.tiny_recipe(epochs=1), tmp_path, replace(OPTIONS, log_every=2))
    found = records(tmp_path, "train")
    assert [record["step"] for record in found] == [2, 4]
    assert all(0 < record["active"] < 1 for record in found)
