"""Kills, signals and crashes: no saved step is lost, and no bit changes."""

import os
import signal
from random import Random

import pytest
import trials

from lbq.config_io import to_document

pytestmark = pytest.mark.multi


def test_p1_twenty_kills_at_random_moments_change_no_bit(pool, tiny, tmp_path):
    recipe, expected = trials.reference(pool, tiny, tmp_path, epochs=25)
    out, rng = tmp_path / "run", Random(1)
    trials.kill_chain(pool, tiny, out, recipe, expected, kills=20, interval=3, rng=rng)


def test_p9_kills_change_no_bit_of_a_moving_average_of_accumulated_steps(pool, tiny, tmp_path):
    recipe, expected = trials.reference(pool, tiny, tmp_path, epochs=8, **trials.AVERAGED[0])
    assert "average" in expected[1]
    out, rng = tmp_path / "run", Random(2)
    trials.kill_chain(pool, tiny, out, recipe, expected, kills=5, interval=3, rng=rng)


def test_p1_twenty_kills_of_a_taught_run_change_no_bit(pool, tiny, tmp_path):
    changes = {"epochs": 25, "ema_decay": 0.9}
    _, alone = trials.reference(pool, tiny, tmp_path / "alone", **changes)
    recipe, expected = trials.reference(pool, tiny, tmp_path, is_taught=True, **changes)
    assert expected != alone
    out, rng = tmp_path / "run", Random(3)
    chain = {"kills": 20, "interval": 3, "rng": rng, "is_taught": True}
    trials.kill_chain(pool, tiny, out, recipe, expected, **chain)


@pytest.mark.parametrize("world", [1, 2])
def test_p3_a_terminated_run_has_lost_no_step(pool, tiny, tmp_path, world):
    recipe, expected = trials.reference(pool, tiny, tmp_path, world=world, epochs=15)
    for seed in range(3):
        out = tmp_path / str(seed)
        trials.terminate(pool, tiny, out, recipe, expected, world=world, rng=Random(seed))


def test_p3_a_signal_to_every_process_of_a_job_loses_no_step_either(pool, tiny, tmp_path):
    """As a scheduler sends it: to the training process and to its data loader workers."""
    recipe, expected = trials.reference(pool, tiny, tmp_path, epochs=15)
    out = tmp_path / "run"
    options = {"log_every": 1, "save_every_s": 1e9, "workers": 2}
    start = {"out": str(out), "recipe": recipe, "options": options}
    job = pool.start("train_run", has_own_group=True, **start)
    trials.wait_for(lambda: trials.num_logged(out) > 2)
    os.killpg(job.pids[0], signal.SIGTERM)
    assert job.wait(30) == [143], job.log()
    assert trials.records(out, "checkpoint")[-1]["step"] == trials.last_step(out)
    pool.run("train_run", **start)
    assert tiny.final_hashes(out) == expected


def test_p2_a_killed_rank_is_restarted_by_the_supervisor(pool, tiny, tmp_path):
    recipe = tiny.tiny_recipe(epochs=30)
    _, expected = trials.reference(pool, tiny, tmp_path, world=2, epochs=30)
    found = trials.kill_a_rank(tiny, tmp_path / "run", recipe, expected, rng=Random(0))
    assert found["was_hit"]


def test_p2_a_killed_loader_worker_ends_the_attempt_and_loses_no_sample(pool, tiny, tmp_path):
    _, expected = trials.reference(pool, tiny, tmp_path, epochs=30)
    recipe = tiny.tiny_recipe(epochs=30)
    log = trials.kill_a_loader_worker(tiny, tmp_path / "run", recipe, expected)
    assert "DataLoader worker" in log
    assert "(exit 70); restarting" in log


def test_d3_a_rank_that_raises_ends_the_others(pool, tiny, tmp_path):
    recipe = to_document(tiny.tiny_recipe())
    fault = {"kind": "crash", "rank": 1, "step": 7}
    job = pool.start("train_run", world=2, out=str(tmp_path / "run"), recipe=recipe, fault=fault)
    assert job.wait(30) == [70, 70]
    assert "a fault of our own" in job.log()


@pytest.mark.parametrize("step", [1, 7, 12])
@pytest.mark.parametrize("mode", ["averaged", "canonical"])
def test_p11_a_nan_on_one_rank_stops_all_of_them(pool, tiny, tmp_path, step, mode):
    changes = {"deterministic": "canonical", "shards": 4} if mode == "canonical" else {}
    recipe = to_document(tiny.tiny_recipe(**changes))
    out = tmp_path / "run"
    job = pool.start(
        "train_run",
        world=2,
        out=str(out),
        recipe=recipe,
        options={"save_every_steps": 1},
        fault={"kind": "poison", "rank": 1, "step": step},
    )
    assert job.wait() == [70, 70]
    assert job.log().count("NonFiniteError: loss nan") >= 2
    assert "process 1, samples" in job.log()
    assert "process 0, samples" not in job.log()
    assert f"Last checkpoint: step {step - 1 if step > 1 else None}" in job.log()


@pytest.mark.parametrize("step", [1, 7, 12])
def test_p11_a_nan_on_one_rank_can_be_skipped_by_all_of_them(pool, tiny, tmp_path, step):
    recipe = to_document(tiny.tiny_recipe(on_nonfinite="skip"))
    out = tmp_path / "run"
    one, other = pool.run(
        "train_run",
        world=2,
        out=str(out),
        recipe=recipe,
        fault={"kind": "poison", "rank": 1, "step": step, "times": 2},
    )
    assert one == other
    assert one["is_finite"]
    expected = [s for s in (step, step + 1) if s <= 12]
    assert [record["step"] for record in trials.records(out, "skip")] == expected


def test_d5_running_statistics_are_the_same_on_every_rank(pool, tiny, tmp_path):
    for epochs in (1, 2):
        recipe = to_document(tiny.tiny_recipe(epochs=epochs))
        answers = pool.run("train_run", world=4, out=str(tmp_path / str(epochs)), recipe=recipe)
        assert len({answer["buffers"] for answer in answers}) == 1
        assert len({tuple(answer["accuracy"]) for answer in answers}) == 1


def test_an_orphan_stops_and_saves(pool, tiny, tmp_path):
    """A worker whose launcher was killed must not continue."""
    recipe = to_document(tiny.tiny_recipe(epochs=200))
    out = tmp_path / "run"
    job = pool.start("orphan", out=str(out), recipe=recipe)
    assert job.wait(60) == [0]
    trials.wait_for(lambda: trials.records(out, "stop"), 60)
    assert trials.last_step(out) < 800
