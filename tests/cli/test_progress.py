import io
from pathlib import Path

import pytest

from lbq.cli import progress
from lbq.cli.progress import Display, headline, progress_counter, show_status, track_progress
from lbq.cli.terminal import Console
from lbq.train.evaluation import Evaluation
from lbq.train.task import Outcome

START = {
    "event": "start", "step": 0, "total_steps": 12, "steps_per_epoch": 4, "recipe": "tiny",
    "parameters": 5000, "processes": 1, "device": "cpu", "threads": 2, "precision": "bf16",
}  # fmt: skip
TRAIN = {
    "event": "train", "step": 6, "epoch": 1.5, "loss": 1.25, "accuracy": 0.5, "active": 0.125,
    "samples_per_s": 1234.5, "waiting_for_data": 0.0,
}  # fmt: skip
EVALUATION = {
    "event": "evaluation", "step": 8, "epoch": 2, "accuracy": 0.4, "correct": 12, "count": 30,
    "loss": 1.5, "best_on_test_set": {"accuracy": 0.5, "epoch": 1},
}  # fmt: skip


@pytest.fixture
def run(tiny, monkeypatch):
    """``run(is_terminal, step_s)``: what a run shows whose steps take so many seconds each."""

    def call(*, is_terminal, step_s):
        file, now = io.StringIO(), 100.0
        console = Console(file=file, force_terminal=is_terminal, width=160, soft_wrap=True)
        monkeypatch.setattr(progress.time, "monotonic", lambda: now)
        display = Display(tiny.tiny_recipe(), console)
        display(START)
        for step in range(1, 9):
            now += step_s
            if step == 6:
                display(TRAIN)
            display({"event": "step", "step": step, "loss": 3.0 - step / 4})
        for done in (10, 20, 30):
            now += 6
            display({"event": "evaluating", "step": 8, "done": done, "total": 30})
        for record in (EVALUATION, {"event": "checkpoint", "step": 8}):
            display(record)
        now += step_s
        display({"event": "step", "step": 9, "loss": 1.0})
        display.close()
        return file.getvalue()

    return call


def test_a_log_gets_a_line_at_the_first_step_and_then_every_ten_seconds(run):
    assert run(is_terminal=False, step_s=4).splitlines() == [
        "training: tiny, 5,000 parameters, 12 steps of 16 samples, 1 x cpu (2 threads), bf16",
        "epoch 0.2/3  step 1 of 12  4/s  loss 2.750  0:00:44 left",
        "epoch 1.0/3  step 4 of 12  4/s  loss 2.250  0:00:32 left",
        "epoch 1.8/3  step 7 of 12  4/s  loss 1.500  accuracy 50.0%  active 0.125  0:00:20 left",
        "epoch 2.0/3  step 8 of 12  evaluating: 10 of 30",
        "epoch 2.0/3  step 8 of 12  evaluating: 30 of 30",
        "epoch 2/3: test accuracy 40.00% (12 of 30), loss 1.500; best so far 50.00% (epoch 1)",
    ]


@pytest.mark.parametrize(("step_s", "lines"), [(0.01, 1), (100, 9)])
def test_the_number_of_lines_follows_the_time_and_not_the_steps(run, step_s, lines):
    shown = run(is_terminal=False, step_s=step_s).splitlines()
    assert len([line for line in shown if "/s  loss" in line]) == lines


def test_a_bar_shows_rate_loss_accuracy_activity_and_time_left_in_a_terminal(run):
    text = run(is_terminal=True, step_s=2)
    for words in (
        "epoch 2.2/3",
        "8/s",
        "loss 1.000",
        "50.0%",
        "active 0.125",
        "0:00:06 left",
        "75.0 %",
    ):
        assert words in text


def evaluation(epoch, correct):
    return Evaluation(step=epoch, epoch=epoch, correct=correct, count=100, loss=0.5)


@pytest.mark.parametrize("ending", ["finished", "already finished"])
def test_the_headline_is_the_last_epoch_and_the_best_is_named_for_what_it_is(ending):
    found = (evaluation(1, 60), evaluation(2, 80), evaluation(3, 70))
    outcome = Outcome(ending=ending, step=3, evaluations=found, exit_code=0)
    words = headline(outcome, Path("runs/x"))
    assert "accuracy after the last epoch: 70.00% (70 of 100)" in words
    assert "best 80.00% after epoch 2, chosen on the test set" in words
    assert words.startswith("nothing left to do") == (ending == "already finished")


def test_a_stopped_run_says_how_to_go_on():
    outcome = Outcome(ending="stopped", step=3, evaluations=(), exit_code=143)
    assert headline(outcome, Path("runs/x")) == (
        "stopped at step 3, saved in runs/x; the same command continues"
    )


def console(*, is_terminal):
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100)


def test_a_bar_moves_in_a_terminal_and_every_item_passes():
    shown = console(is_terminal=True)
    assert list(track_progress(range(3), total=3, what="batches", console=shown)) == [0, 1, 2]
    assert "batches" in shown.file.getvalue()


def test_a_short_loop_is_silent_without_a_terminal_and_a_long_one_is_not(monkeypatch):
    shown = console(is_terminal=False)
    list(track_progress(range(3), total=3, what="batches", console=shown))
    assert shown.file.getvalue() == ""
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    list(track_progress(range(5), total=5, what="batches", console=shown))
    assert "batches: 2 of 5, 0:00:18 left\n" in shown.file.getvalue()


def test_what_is_counted_elsewhere_is_shown_like_a_loop(monkeypatch):
    shown = console(is_terminal=True)
    with progress_counter("samples", shown) as report:
        report(30, 40)
    assert "30/40" in shown.file.getvalue()
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    shown = console(is_terminal=False)
    with progress_counter("samples", shown) as report:
        for done in range(1, 5):
            report(done, 4)
    assert shown.file.getvalue() == "samples: 2 of 4, 0:00:12 left\n"


def test_a_status_names_the_work():
    for is_terminal in (True, False):
        shown = console(is_terminal=is_terminal)
        with show_status("writing net.onnx", shown):
            pass
        assert "writing net.onnx" in shown.file.getvalue()
