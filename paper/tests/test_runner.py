import json
import subprocess
import sys
from dataclasses import replace

import pytest
from tiny import tiny_recipe

from lbq.config_io import to_document
from lbq.errors import RunError
from lbq.train import ModelConfig, RunOptions, write_recipe
from lbq_paper.experiments import Experiment
from lbq_paper.records import read_records
from lbq_paper.runner import RunnerOptions, run_experiment, run_experiments

OPTIONS = RunOptions(device="cpu", threads=1, log_every=2)


@pytest.fixture
def experiment():
    """As small experiments are trained: bf16, channels last, fused."""
    model = ModelConfig(width=1 / 64, blocks=(1, 1, 1), timesteps=2, fused=True)
    recipe = tiny_recipe(model=model, epochs=2, precision="bf16", channels_last=True)
    return Experiment(entries=("open/tiny",), method="tiny", recipe=recipe, size="pocket")


@pytest.fixture
def work(tmp_path):
    return RunnerOptions(out=tmp_path / "results", folder=tmp_path / "runs", options=OPTIONS)


@pytest.fixture
def of_cifar10(experiment):
    """The same with the name of data that are not here."""
    data = replace(experiment.recipe.data, source="uoft-cs/cifar10")
    return replace(experiment, recipe=replace(experiment.recipe, data=data))


def run(experiment, work):
    return run_experiment(experiment, work, log=str)


def test_an_experiment_is_trained_measured_and_recorded_once(experiment, work, tmp_path):
    assert run(experiment, work) == "recorded"
    path = work.out / f"{experiment.id}.json"
    record = json.loads(path.read_text())
    assert record["id"] == experiment.id
    assert record["recipe"] == to_document(experiment.recipe)
    assert record["correct"] == record["measured_correct"]
    assert record["count"] == record["counts"]["num_images"] == 30
    assert record["accuracy_after_last_epoch"] == record["correct"] / 30
    assert record["best_on_test_set"]["accuracy"] >= record["accuracy_after_last_epoch"]
    assert len(record["evaluations"]) == 2
    assert len(record["weights_sha256"]) == len(record["data_sha256"]) == 64
    assert 0 <= record["minutes"] < 5
    assert record["versions"]["torch"]
    assert record["curve"]
    assert (record["device"], record["processes"], record["threads"]) == ("cpu", 1, 1)
    assert len(record["layers"]) == 7
    assert str(tmp_path) not in path.read_text()
    before = path.stat().st_mtime_ns
    assert run(experiment, work) == "already recorded"
    assert path.stat().st_mtime_ns == before
    assert not path.with_suffix(".safetensors").exists()


def test_what_was_cut_is_continued_to_the_same_bits(experiment, work, tmp_path):
    cut = replace(work, options=replace(OPTIONS, stop_at=3))
    assert run(experiment, cut) == "stopped"
    assert not work.out.exists()
    assert run(experiment, work) == "recorded"
    whole = replace(work, out=tmp_path / "other", folder=tmp_path / "others", keep_weights=True)
    assert run(experiment, whole) == "recorded"
    ours, theirs = (
        json.loads((w.out / f"{experiment.id}.json").read_text()) for w in (work, whole)
    )
    assert (ours["attempts"], theirs["attempts"]) == (2, 1)
    for key in ("weights_sha256", "correct", "counts", "layers", "evaluations"):
        assert ours[key] == theirs[key]
    assert (whole.out / f"{experiment.id}.safetensors").stat().st_size > 0


def test_a_record_of_older_code_counts_only_if_it_is_accepted(experiment, work):
    run(experiment, work)
    path = work.out / f"{experiment.id}.json"
    record = json.loads(path.read_text())
    path.unlink()
    (work.out / "0123456789ab.json").write_text(json.dumps({**record, "numerics_sha256": "0" * 64}))
    ((older,),) = read_records(work.out).values()
    assert not older.is_current
    assert run(experiment, replace(work, accept_older=True)) == "already recorded"
    assert run(experiment, work) == "recorded"
    ((first, second),) = read_records(work.out).values()
    assert first.is_current
    assert not second.is_current


def test_one_failure_does_not_stop_the_others(experiment, of_cifar10, work, tmp_path):
    said = []
    here = replace(work, data=tmp_path)
    code = run_experiments([of_cifar10, experiment], here, log=said.append)
    assert code == 1
    assert "needs the data set cifar10" in said[0]
    assert said[-1].endswith(": recorded")
    assert any("epoch 2, test" in words for words in said)


def test_a_launcher_is_refused(experiment, work, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match="pass --devices N"):
        run_experiments([experiment], work, log=str)


def test_another_data_set_is_refused(of_cifar10, work, tmp_path):
    (tmp_path / "cifar100").mkdir()
    there = replace(work, data=tmp_path / "cifar100")
    with pytest.raises(RunError, match="neither has this name nor holds it"):
        run(of_cifar10, there)


def test_a_diverged_experiment_is_recorded_as_such(experiment, work):
    wild = replace(experiment.recipe, optim=replace(experiment.recipe.optim, lr=1e9))
    experiment = replace(experiment, recipe=wild)
    assert run(experiment, work) == "recorded"
    ((record,),) = read_records(work.out).values()
    assert record.is_diverged
    assert record.body["curve"] is not None
    assert record.body["device"] == "cpu"
    assert record.accuracy is None
    assert run(experiment, work) == "already recorded"


PROGRAM = """
import sys
from pathlib import Path
from lbq.train import RunOptions, read_recipe
from lbq_paper.experiments import Experiment
from lbq_paper.runner import RunnerOptions, run_experiments

recipe, folder = read_recipe(Path(sys.argv[1])), Path(sys.argv[2])
experiment = Experiment(entries=("open/tiny",), method="tiny", recipe=recipe, size="pocket")
work = RunnerOptions(out=folder / "results", folder=folder / "runs",
            options=RunOptions(device="cpu", threads=1))
sys.exit(run_experiments([experiment], work, log=print))
"""


@pytest.mark.multi
def test_two_runners_do_not_run_one_experiment_twice(experiment, tmp_path):
    file = tmp_path / "recipe.json"
    file.write_text(write_recipe(replace(experiment.recipe, epochs=20)))
    command = [sys.executable, "-c", PROGRAM, str(file), str(tmp_path)]
    runners = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [r.communicate(timeout=300)[0].rpartition(": ")[2].strip() for r in runners]
    assert [runner.returncode for runner in runners] == [0, 0]
    said.remove("recorded")
    assert said[0] in ("locked by another process", "already recorded")
    assert len(list((tmp_path / "results").iterdir())) == 1
    (metrics_log,) = (tmp_path / "runs").glob("*/run/metrics.jsonl")
    assert metrics_log.read_text().count('"event": "start"') == 1


@pytest.mark.multi
def test_an_experiment_can_be_trained_on_several_devices(experiment, work, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recipe = replace(experiment.recipe, epochs=1)
    assert run(replace(experiment, recipe=recipe), replace(work, devices=2)) == "recorded"
    ((record,),) = read_records(work.out).values()
    assert record.body["count"] == 30
    (metrics_log,) = work.folder.glob("*/run/metrics.jsonl")
    assert '"processes": 2' in metrics_log.read_text()


def test_a_limit_of_time_stops_and_saves(experiment, work):
    long = replace(experiment, recipe=replace(experiment.recipe, epochs=100_000))
    said = []
    assert run_experiments([long], work, log=said.append, limit_minutes=0.05) == 143
    assert "the same command continues" in said[-1]
    assert list(work.folder.glob("*/run/checkpoints/*.json"))
