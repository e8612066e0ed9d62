import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lbq.config_io import to_document
from lbq.errors import RecipeError, RunError
from lbq.neurons import named_neurons
from lbq.train import RunOptions, loop, optim, train
from lbq.train.allocator import keep_freed_memory
from lbq.train.build import torch_settings
from lbq.train.metrics import read_metrics_log
from lbq.train.model_config import ModelConfig
from lbq.train.optim import OptimConfig
from lbq.train.run_folder import RunFolder, load_run

OPTIONS = RunOptions(device="cpu", log_every=2, cache=Path("/nonexistent"))


def events(out):
    return [(record["event"], record["step"]) for record in read_metrics_log(out / "metrics.jsonl")]


def test_a_run_trains_evaluates_saves_and_logs(tiny, tmp_path):
    heard = []
    outcome = train(tiny.tiny_recipe(), tmp_path, OPTIONS, callbacks=[heard.append])
    assert (outcome.ending, outcome.step, outcome.exit_code) == ("finished", 12, 0)
    assert [found.epoch for found in outcome.evaluations] == [1, 2, 3]
    assert all(found.count == 30 for found in outcome.evaluations)
    captured = [("start", 0)]
    for step in (4, 8, 12):
        captured += [("train", step - 2), ("train", step), ("evaluation", step)]
    captured += [("checkpoint", 12), ("finish", 12)]
    assert events(tmp_path) == captured
    assert [(record["event"], record["step"]) for record in heard] == captured
    line = next(record for record in heard if record["event"] == "train")
    assert {"loss", "accuracy", "samples_per_s", "waiting_for_data", "active", "lr"} <= set(line)
    assert RunFolder(tmp_path).read_recipe() == tiny.tiny_recipe()


def test_every_step_and_every_batch_of_an_evaluation_is_told_and_not_logged(tiny, tmp_path):
    told = []
    train(tiny.tiny_recipe(epochs=1), tmp_path, OPTIONS, progress=told.append)
    assert [each["step"] for each in told if each["event"] == "step"] == [1, 2, 3, 4]
    assert all(each["loss"] > 0 for each in told if each["event"] == "step")
    evaluated = [(each["done"], each["total"]) for each in told if each["event"] == "evaluating"]
    assert evaluated == [(16, 30), (30, 30)]
    assert not {name for name, _ in events(tmp_path)} & {"step", "evaluating"}


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


FUSED = ModelConfig(name="resnet20", width=1 / 32, timesteps=2, fused=True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16", "channels_last": True, "accumulate": 2},
        {"precision": "fp16", "budget": 0.4},
        {"deterministic": "canonical", "shards": 4},
    ],
    ids=["plain", "bf16 accumulate", "fp16 budget", "canonical"],
)
def test_packed_bursts_do_not_change_a_run(tiny, tmp_path, changes):
    recipe = tiny.tiny_recipe(epochs=2, model=FUSED, **changes)
    train(recipe, tmp_path / "plain", OPTIONS)
    train(recipe, tmp_path / "packed", replace(OPTIONS, pack_bursts=True, stop_at=5))
    train(recipe, tmp_path / "packed", OPTIONS)  # it may change within a run
    assert tiny.final_hashes(tmp_path / "packed") == tiny.final_hashes(tmp_path / "plain")


@pytest.mark.multi
def test_packed_bursts_do_not_change_a_run_of_two_processes(tiny, tmp_path, pool):
    changes = {"precision": "bf16", "channels_last": True, "epochs": 1}
    recipe = to_document(tiny.tiny_recipe(model=FUSED, **changes))
    found = [
        pool.run(
            "train_run",
            world=2,
            out=str(tmp_path / str(packs)),
            recipe=recipe,
            options={"pack_bursts": packs},
        )
        for packs in (False, True)
    ]
    assert found[0] == found[1]


def test_packed_bursts_are_refused_for_a_compiled_model(tiny, tmp_path):
    with pytest.raises(RecipeError, match="compile or pack_bursts"):
        train(tiny.tiny_recipe(compile=True), tmp_path, replace(OPTIONS, pack_bursts=True))


@pytest.mark.parametrize(("units", "used"), [(["amx_bf16"], "bf16"), ([], "fp32")])
def test_precision_auto_is_stored_as_what_was_used_and_kept_on_another_machine(
    tiny, tmp_path, monkeypatch, units, used
):
    heard = []
    recipe = tiny.tiny_recipe(precision="auto")
    monkeypatch.setattr(optim, "bf16_units", lambda: units)
    train(recipe, tmp_path / "auto", replace(OPTIONS, stop_at=5), callbacks=[heard.append])
    assert heard[0]["precision"] == used
    assert RunFolder(tmp_path / "auto").read_recipe() == replace(recipe, precision=used)
    assert load_run(tmp_path / "auto").config.precision == used
    monkeypatch.setattr(optim, "bf16_units", lambda: [] if units else ["amx_bf16"])
    train(recipe, tmp_path / "auto", OPTIONS)
    train(replace(recipe, precision=used), tmp_path / "named", OPTIONS)
    assert tiny.final_hashes(tmp_path / "auto") == tiny.final_hashes(tmp_path / "named")


@pytest.mark.multi
def test_two_processes_agree_on_the_precision(pool, tiny, tmp_path):
    recipe = to_document(tiny.tiny_recipe(precision="auto"))
    one, other = pool.run("train_run", world=2, out=str(tmp_path), recipe=recipe)
    assert one == other
    assert load_run(tmp_path).config.precision in ("fp32", "bf16")


def test_bf16_without_a_unit_for_it_is_said_to_be_slow(tiny, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(optim, "bf16_units", list)
    train(tiny.tiny_recipe(precision="bf16"), tmp_path, replace(OPTIONS, stop_at=1))
    assert "bf16 is slower than fp32 on this processor" in caplog.text


def test_an_epoch_that_ended_in_a_stop_is_still_evaluated(tiny, tmp_path):
    recipe = tiny.tiny_recipe()
    assert train(recipe, tmp_path, replace(OPTIONS, stop_at=4)).evaluations == ()
    outcome = train(recipe, tmp_path, replace(OPTIONS, stop_at=5))
    assert [found.epoch for found in outcome.evaluations] == [1]


def test_a_finished_run_is_not_changed(tiny, tmp_path):
    first = train(tiny.tiny_recipe(), tmp_path, OPTIONS)
    before = events(tmp_path)
    again = train(tiny.tiny_recipe(), tmp_path, OPTIONS)
    assert (again.ending, again.exit_code) == ("already finished", 0)
    assert again.evaluations == first.evaluations
    assert events(tmp_path) == before


def test_a_checkpoint_ahead_of_the_recipe_is_refused(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, OPTIONS)
    options = replace(OPTIONS, allow_changed=("recipe.epochs",))
    with pytest.raises(RunError, match="step 12, but the recipe has only 4 steps"):
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
    with pytest.raises(RecipeError, match="3 devices cannot split a batch of 16"):
        tiny.tiny_recipe().check_world_size(3)
    canonical = tiny.tiny_recipe(deterministic="canonical", shards=4)
    with pytest.raises(RecipeError, match="8 devices"):
        canonical.check_world_size(8)
    tiny.tiny_recipe(accumulate=4).check_world_size(4)


def test_calibrated_steps_come_from_the_data_and_leave_the_statistics_alone(tiny, tmp_path):
    recipe = tiny.tiny_recipe(calibrate=99.0, optim=OptimConfig(lr=1e-9))
    train(recipe, tmp_path, replace(OPTIONS, stop_at=1))
    model = load_run(tmp_path).model
    steps = {neuron.step().item() for _, neuron in named_neurons(model)}
    assert len(steps) == 19  # every layer its own; uncalibrated they all are 1
    assert model.stem[2].num_batches_tracked == 1


@pytest.mark.multi
def test_two_processes_end_with_the_same_state(pool, tiny, tmp_path):
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


EVERY_STEP = replace(OPTIONS, log_every=1)


def records(out, event):
    return [r for r in read_metrics_log(out / "metrics.jsonl") if r["event"] == event]


def test_the_learning_rate_follows_its_schedule(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, EVERY_STEP)
    rates = [record["lr"] for record in records(tmp_path, "train")]
    assert rates[0] == 0.0
    assert rates[2] == pytest.approx(0.05 * 0.5)
    assert max(rates) == rates[4]
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_evaluations_come_as_often_as_asked_and_after_the_last_epoch(tiny, tmp_path):
    train(tiny.tiny_recipe(epochs=5, evaluate_every=2), tmp_path, EVERY_STEP)
    found = records(tmp_path, "evaluation")
    assert [record["epoch"] for record in found] == [2, 4, 5]
    best = max(record["accuracy"] for record in found)
    assert found[-1]["best_on_test_set"]["accuracy"] == best


def test_checkpoints_come_every_so_many_steps_and_at_the_end(tiny, tmp_path):
    train(tiny.tiny_recipe(), tmp_path, replace(EVERY_STEP, save_every_steps=5))
    assert [record["step"] for record in records(tmp_path, "checkpoint")] == [5, 10, 12]


def test_a_signal_between_steps_saves_the_step_that_was_reached(tiny, tmp_path):
    def interrupt(record):
        if record["event"] == "train" and record["step"] == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    outcome = train(tiny.tiny_recipe(), tmp_path, EVERY_STEP, callbacks=[interrupt])
    assert (outcome.ending, outcome.exit_code) == ("stopped", 143)
    assert outcome.step == 7  # the next step sees it, finishes, and is saved
    assert records(tmp_path, "checkpoint")[-1]["step"] == 7
    assert records(tmp_path, "stop")[-1]["step"] == 7


def test_a_signal_during_an_evaluation_stops_it_and_it_is_repeated_on_resume(
    tiny, tmp_path, monkeypatch
):
    real = loop.evaluate

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", interrupted)
        outcome = train(tiny.tiny_recipe(epochs=1), tmp_path, EVERY_STEP)
    assert (outcome.ending, outcome.step, outcome.exit_code) == ("stopped", 4, 143)
    outcome = train(tiny.tiny_recipe(epochs=1), tmp_path, EVERY_STEP)
    assert outcome.ending == "finished"
    assert [found.step for found in outcome.evaluations] == [4]


def test_workers_that_prepare_batches_change_no_bit(tiny, tmp_path):
    for workers in (0, 2):
        options = replace(EVERY_STEP, workers=workers)
        train(tiny.tiny_recipe(epochs=1), tmp_path / str(workers), options)
    assert tiny.final_hashes(tmp_path / "0") == tiny.final_hashes(tmp_path / "2")


def test_levels_are_watched_in_the_steps_that_are_logged(tiny, tmp_path):
    train(tiny.tiny_recipe(epochs=1), tmp_path, OPTIONS)
    found = records(tmp_path, "train")
    assert [record["step"] for record in found] == [2, 4]
    assert all(0 < record["active"] < 1 for record in found)


CPU = torch.device("cpu")


def test_the_seed_decides_the_weights(build):
    one, same, other = (build(seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_weights_have_the_memory_format_of_the_recipe(build):
    for channels_last in (True, False):
        weight = build(channels_last=channels_last).model.stages[1][0].synapse1[0].weight
        is_last = weight.is_contiguous(memory_format=torch.channels_last)
        assert is_last == channels_last


def global_settings():
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        torch.get_rng_state().tolist(),
    )


@pytest.fixture
def unusual_settings(monkeypatch):
    """Settings that no recipe would choose, restored after the test."""
    before = torch.get_num_threads()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def test_canonical_mode_fixes_threads_and_kernels(tiny, unusual_settings):
    with torch_settings(tiny.tiny_recipe(), CPU, threads=2):
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.benchmark
    with torch_settings(tiny.tiny_recipe(deterministic="canonical"), CPU):
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize("mode", ["samples", "canonical"])
def test_training_leaves_the_settings_of_torch_as_they_were(mode, tiny, tmp_path, unusual_settings):
    recipe = tiny.tiny_recipe(epochs=1, deterministic=mode)
    before = global_settings()
    train(recipe, tmp_path, RunOptions(device="cpu", threads=1, stop_at=1))
    assert global_settings() == before

    def interrupt(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path, RunOptions(device="cpu", threads=1), callbacks=[interrupt])
    assert global_settings() == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_network_is_trained_saved_and_continued(tiny, tmp_path, monkeypatch):
    """Without code generation, which takes minutes; tests/models/test_compile.py has that."""
    real = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: real(model, backend="eager"))
    recipe = tiny.tiny_recipe(epochs=1, compile=True)
    assert train(recipe, tmp_path, replace(OPTIONS, stop_at=2)).step == 2
    outcome = train(recipe, tmp_path, OPTIONS)
    assert (outcome.ending, outcome.step) == ("finished", 4)


FAULTS = """
import resource, sys
import torch
from lbq.train.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(3):
    torch.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.multi
def test_large_blocks_stay_in_the_process():
    if not keep_freed_memory():
        pytest.skip("no glibc here")
    found = {}
    for mode in ("keep", "default"):
        command = [sys.executable, "-c", FAULTS, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[mode] = int(done.stdout)
    assert found["default"] > 10 * 20  # twenty blocks, fetched page by page, huge or not
    assert found["keep"] < found["default"] / 10
