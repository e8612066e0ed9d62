from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lbq.config_io import to_document
from lbq.errors import RecipeError, RunError
from lbq.neurons import named_neurons
from lbq.train.engine import RunOptions, train
from lbq.train.metrics import read_metrics_log
from lbq.train.model_config import ModelConfig
from lbq.train.optim import OptimConfig
from lbq.train.run_folder import RunFolder
from lbq.train.trained import load_trained

OPTIONS = RunOptions(device="cpu", log_every=2, cache=Path("/nonexistent"))


def events(out):
    return [(record["event"], record["step"]) for record in read_metrics_log(out / "metrics.jsonl")]


def test_a_run_trains_evaluates_saves_and_tells(tiny, tmp_path):
    heard = []
    outcome = train(tiny.tiny_recipe(), tmp_path, OPTIONS, callbacks=[heard.append])
    assert (outcome.ending, outcome.step, outcome.exit_code) == ("finished", 12, 0)
    assert [found.epoch for found in outcome.evaluations] == [1, 2, 3]
    assert all(found.count == 30 for found in outcome.evaluations)
    told = [("start", 0), ("train", 2), ("train", 4), ("evaluation", 4), ("train", 6), ("train", 8)]
    told += [("evaluation", 8), ("train", 10), ("train", 12), ("evaluation", 12)]
    told += [("checkpoint", 12), ("finish", 12)]
    assert events(tmp_path) == told
    assert [(record["event"], record["step"]) for record in heard] == told
    line = next(record for record in heard if record["event"] == "train")
    assert {"loss", "accuracy", "samples_per_s", "waiting_for_data", "active", "lr"} <= set(line)
    assert RunFolder(tmp_path).read_recipe() == tiny.tiny_recipe()


def test_the_same_run_twice_has_the_same_bits(tiny, tmp_path):
    for name in ("one", "other"):
        train(tiny.tiny_recipe(), tmp_path / name, OPTIONS)
    assert tiny.final_hashes(tmp_path / "one") == tiny.final_hashes(tmp_path / "other")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optim": OptimConfig(kind="adamw", lr=0.01, clip_norm=0.5), "ema_decay": 0.9},
        {"precision": "bf16", "channels_last": True, "accumulate": 2, "label_smoothing": 0.1},
        {"precision": "fp16", "loss": "tet"},
        {"deterministic": "canonical", "shards": 4, "calibrate": 99.0},
    ],
    ids=["plain", "adamw ema clip", "bf16 accumulate", "fp16 tet", "canonical calibrated"],
)
def test_a_run_that_is_stopped_at_any_step_goes_on_bit_for_bit(tiny, tmp_path, changes):
    recipe = tiny.tiny_recipe(epochs=2, **changes)
    train(recipe, tmp_path / "whole", OPTIONS)
    for step in (1, 4, 5, 7):  # inside epochs and between them
        outcome = train(recipe, tmp_path / "cut", replace(OPTIONS, stop_at=step))
        assert (outcome.ending, outcome.step, outcome.exit_code) == ("stopped", step, 0)
    outcome = train(recipe, tmp_path / "cut", OPTIONS)
    assert outcome.ending == "finished"
    assert tiny.final_hashes(tmp_path / "cut") == tiny.final_hashes(tmp_path / "whole")


def test_an_epoch_that_ended_in_a_stop_is_still_evaluated(tiny, tmp_path):
    recipe = tiny.tiny_recipe()
    assert train(recipe, tmp_path, replace(OPTIONS, stop_at=4)).evaluations == ()
    outcome = train(recipe, tmp_path, replace(OPTIONS, stop_at=5))
    assert [found.epoch for found in outcome.evaluations] == [1]


def test_a_finished_run_is_left_alone(tiny, tmp_path):
    first = train(tiny.tiny_recipe(), tmp_path, OPTIONS)
    before = events(tmp_path)
    again = train(tiny.tiny_recipe(), tmp_path, OPTIONS)
    assert (again.ending, again.exit_code) == ("already finished", 0)
    assert again.evaluations == first.evaluations
    assert events(tmp_path) == before


def test_a_checkpoint_ahead_of_the_recipe_is_refused(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, OPTIONS)
    options = replace(OPTIONS, allow_changed=("recipe.epochs",))
    with pytest.raises(RunError, match="step 12, ahead of the 4 steps"):
        train(tiny.tiny_recipe(epochs=1), tmp_path, options)


def test_another_recipe_is_refused_with_what_differs(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, replace(OPTIONS, stop_at=1))
    other = tiny.tiny_recipe(
        epochs=4, model=ModelConfig(name="resnet20", width=1 / 64, timesteps=1)
    )
    with pytest.raises(RunError) as caught:
        train(other, tmp_path, OPTIONS)
    assert "recipe.epochs: 3 -> 4" in str(caught.value)
    assert "recipe.model.timesteps: 2 -> 1" in str(caught.value)


def test_other_code_and_other_data_are_refused_each_by_its_name(tiny, tmp_path, monkeypatch):
    recipe = tiny.tiny_recipe()
    train(recipe, tmp_path, replace(OPTIONS, stop_at=1))
    with monkeypatch.context() as patch:
        patch.setattr("lbq.train.provenance.code_digest", lambda: "edited")
        with pytest.raises(RunError, match=r"code: '[0-9a-f]{64}' -> 'edited'"):
            train(recipe, tmp_path, OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.99")
        with pytest.raises(RunError, match=r"versions.torch: .* -> '2.99'"):
            train(recipe, tmp_path, OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr("lbq.data.synthetic._PATTERNS", 7)  # other pixels under the same name
        with pytest.raises(RunError, match=r"data: '[0-9a-f]{64}' -> '[0-9a-f]{64}'"):
            train(recipe, tmp_path, OPTIONS)
        train(recipe, tmp_path, replace(OPTIONS, allow_changed=("data",), stop_at=2))


def test_more_devices_than_a_batch_has_parts_are_refused(tiny):
    with pytest.raises(RecipeError, match="3 devices cannot share a batch of 16"):
        tiny.tiny_recipe().check_world_size(3)
    canonical = tiny.tiny_recipe(deterministic="canonical", shards=4)
    with pytest.raises(RecipeError, match="8 devices"):
        canonical.check_world_size(8)
    tiny.tiny_recipe(accumulate=4).check_world_size(4)


def test_calibrated_steps_come_from_the_data_and_leave_the_statistics_alone(tiny, tmp_path):
    recipe = tiny.tiny_recipe(calibrate=99.0, optim=OptimConfig(lr=1e-9))
    train(recipe, tmp_path, replace(OPTIONS, stop_at=1))
    model, _, _ = load_trained(tmp_path)
    steps = {neuron.step().item() for _, neuron in named_neurons(model)}
    assert len(steps) == 19  # every layer its own; uncalibrated they all are 1
    assert model.stem[2].num_batches_tracked == 1


@pytest.mark.multi
def test_two_processes_hold_the_same_after_every_run(pool, tiny, tmp_path):
    recipe = to_document(tiny.tiny_recipe(ema_decay=0.9))
    one, other = pool.run("train_run", world=2, out=str(tmp_path / "two"), recipe=recipe)
    assert one == other
    alone = pool.run("train_run", out=str(tmp_path / "one"), recipe=recipe)[0]
    assert alone["step"] == one["step"] == 12
    assert alone["tensors"] != one["tensors"]  # other batch norms


@pytest.mark.multi
def test_canonical_runs_have_the_same_bits_for_any_number_of_processes(pool, tiny, tmp_path):
    canonical = to_document(tiny.tiny_recipe(deterministic="canonical", shards=4))
    found = set()
    for world in (1, 2, 4):
        out = tmp_path / str(world)
        answers = pool.run("train_run", world=world, out=str(out), recipe=canonical)
        found |= {answer["tensors"] for answer in answers}
    out = str(tmp_path / "moving")
    for world, stop_at in ((1, 3), (4, 9), (2, None)):
        options = {"stop_at": stop_at}
        answers = pool.run("train_run", world=world, out=out, recipe=canonical, options=options)
    found |= {answer["tensors"] for answer in answers}
    assert len(found) == 1
    hashes = [tiny.final_hashes(tmp_path / name) for name in ("1", "2", "4", "moving")]
    assert all(each == hashes[0] for each in hashes)
