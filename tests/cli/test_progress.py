import io
from pathlib import Path

import pytest

from lbq.cli import progress
from lbq.cli.progress import Display, headline, progress_counter, show_status, track_progress
from lbq.cli.terminal import Console
from lbq.train.engine import Outcome
from lbq.train.evaluation import Evaluation

START = {
    "event": "start", "step": 0, "total_steps": 12, "recipe": "tiny", "parameters": 5000,
    "processes": 1, "device": "cpu", "threads": 2,
}  # fmt: skip
TRAIN = {
    "event": "train", "step": 6, "epoch": 1.5, "loss": 1.25, "accuracy": 0.5, "active": 0.125,
    "samples_per_s": 1234.5, "waiting_for_data": 0.0,
}  # fmt: skip
EVALUATION = {
    "event": "evaluation", "step": 8, "epoch": 2, "accuracy": 0.4, "correct": 12, "count": 30,
    "loss": 1.5, "best_on_test_set": {"accuracy": 0.5, "epoch": 1},
}  # fmt: skip


def show(tiny, *, is_terminal):
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=160, soft_wrap=True)
    display = Display(tiny.tiny_recipe(), console)
    for record in (START, TRAIN, EVALUATION, {"event": "checkpoint", "step": 8}):
        display(record)
    display.close()
    return file.getvalue()


def test_lines_are_written_where_there_is_no_terminal(tiny):
    lines = show(tiny, is_terminal=False).splitlines()
    assert (
        lines[0] == "training: tiny, 5,000 parameters, 12 steps of 16 samples, 1 x cpu (2 threads)"
    )
    assert lines[1] == "epoch 1.5/3  1,234/s  loss 1.250  accuracy 50.0%  active 0.125"
    assert lines[2].startswith("epoch 2/3: test accuracy 40.00% (12 of 30)")
    assert len(lines) == 3


def test_a_bar_shows_rate_loss_accuracy_activity_and_time_left_in_a_terminal(tiny):
    text = show(tiny, is_terminal=True)
    for words in (
        "epoch 1.5/3",
        "1,234/s",
        "loss 1.250",
        "50.0%",
        "active 0.125",
        "left",
        "50.0 %",
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
    assert "batches: 2 of 5\n" in shown.file.getvalue()


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
    assert shown.file.getvalue() == "samples: 2 of 4\n"


def test_a_status_names_the_work():
    for is_terminal in (True, False):
        shown = console(is_terminal=is_terminal)
        with show_status("writing net.onnx", shown):
            pass
        assert "writing net.onnx" in shown.file.getvalue()
