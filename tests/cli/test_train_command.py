import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lbq.cli import train_command as command
from lbq.cli.args import UsageError
from lbq.cli.main import main
from lbq.train.recipe import write_recipe
from lbq.train.recipes import RECIPES


@pytest.fixture
def recipe_file(tmp_path, tiny):
    path = tmp_path / "tiny.json"
    path.write_text(write_recipe(tiny.tiny_recipe(epochs=1)))
    return str(path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_without_flags_is_what_it_says(name):
    assert command.parse([name]).recipe == RECIPES[name]()


def test_every_field_can_be_changed_by_a_flag():
    words = ["pocket", "--epochs", "3", "--optim.lr", "0.5", "--model.neuron.kind", "relu"]
    words += ["--data", "somewhere", "--data.augment.cutout", "0", "--no-channels-last"]
    words += ["--ema-decay", "0.9", "--threads", "2", "--out", "there", "--devices", "4"]
    arguments = command.parse(words)
    recipe = arguments.recipe
    assert (recipe.epochs, recipe.optim.lr, recipe.model.neuron.kind) == (3, 0.5, "relu")
    assert (recipe.data.source, recipe.data.augment.cutout) == ("somewhere", 0)
    assert (recipe.channels_last, recipe.ema_decay) == (False, 0.9)
    assert (arguments.options.threads, arguments.out, arguments.devices) == (2, Path("there"), 4)
    assert recipe.optim.momentum == RECIPES["pocket"]().optim.momentum


def test_what_the_paper_leaves_open_can_be_chosen_by_flags():
    words = ["pocket", "--model.blocks", "1", "2", "1", "--model.neuron.surrogate", "tailed-box"]
    words += ["--model.neuron.reset-mode", "level", "--model.neuron.gradient-scale", "lsq"]
    model = command.parse(words).recipe.model
    assert model.blocks == (1, 2, 1)
    assert (model.neuron.surrogate, model.neuron.reset_mode) == ("tailed-box", "level")
    assert model.neuron.gradient_scale == "lsq"


def test_a_recipe_can_come_from_a_file(recipe_file, tiny):
    arguments = command.parse([recipe_file, "--seed", "5"])
    assert arguments.recipe == tiny.tiny_recipe(epochs=1, seed=5)


def test_help_without_a_recipe_lists_the_recipes(capsys):
    with pytest.raises(SystemExit) as leaving:
        command.parse(["--help"])
    assert not leaving.value.code
    assert "nmnist-pocket" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--epochs", "3"]])
def test_a_recipe_must_be_named(words):
    with pytest.raises(UsageError, match=r"name a recipe first.*nmnist-pocket"):
        command.parse(words)


def test_the_outcome_is_data_if_asked(recipe_file, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["train", recipe_file, "--out", out, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["run"], found["ending"], found["step"]) == (out, "finished", 4)
    assert found["last"]["accuracy"] == found["last"]["correct"] / 30
    assert found["best_on_test_set"] == found["last"]
    assert "training: tiny" in captured.err


def test_a_run_from_the_command_line(recipe_file, tmp_path, capsys):
    words = ["train", recipe_file, "--out", str(tmp_path / "run"), "--log-every", "2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "training: tiny" in out
    assert "accuracy after the last epoch" in out
    assert "chosen on the test set" in out
    assert main(words) == 0
    assert "nothing left to do" in capsys.readouterr().out
    assert main([*words, "--seed", "9"]) == 1
    assert "--allow-changed recipe.seed" in capsys.readouterr().err


def test_charts_are_written_if_asked_for(recipe_file, tmp_path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    assert main(["train", recipe_file, "--out", str(out), "--tensorboard"]) == 0
    assert list((out / "tensorboard").iterdir())


def run(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "lbq.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        **options,
    )


@pytest.mark.multi
def test_two_devices_need_no_launcher_from_the_user(recipe_file, tmp_path):
    done = run("train", recipe_file, "--devices", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "2 x cpu" in done.stdout
    assert done.stdout.count("accuracy after the last epoch") == 1
    found = run("eval", str(tmp_path / "run"), "--devices", "2", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["count"] == 30


@pytest.mark.multi
def test_a_surrounding_torchrun_is_joined(recipe_file, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "lbq.cli", "train", recipe_file, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 x cpu" in done.stdout


@pytest.mark.multi
def test_a_mistake_of_all_devices_has_no_traceback(recipe_file, tmp_path):
    done = run("train", recipe_file, "--devices", "3", "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: 3 devices cannot split a batch of 16")


def test_a_supervisor_inside_torchrun_is_refused(recipe_file, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", recipe_file, "--supervise"]) == 1
    assert "does not work inside torchrun" in capsys.readouterr().err


@pytest.mark.multi
def test_a_supervised_run_is_a_run(recipe_file, tmp_path):
    done = run("train", recipe_file, "--supervise", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "accuracy after the last epoch" in done.stdout
    assert os.path.exists(tmp_path / "run" / "recipe.json")
