"""``lbq train ./my_recipe.py``: a network and data of the user's own, like a named recipe."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lbq
from lbq.cli import train_command as command
from lbq.cli.args import UsageError
from lbq.cli.main import main
from lbq.errors import RecipeError
from lbq.train.recipe_file import load_recipe_file

MINE = """\
import torch
from torch import nn

import lbq
from lbq.train import OptimConfig


def recipe():
    x, y = torch.randn(64, 6), torch.arange(64) % 3
    data = x + y[:, None], y
    model = nn.Sequential(
        nn.Linear(6, 12),
        nn.BatchNorm1d(12),
        nn.Dropout(0.2),
        lbq.RepeatOverTime(2),
        lbq.BurstLIF(),
        nn.Linear(12, 3),
    )
    config = lbq.TrainConfig(epochs=2, batch=16, optim=OptimConfig(lr=0.05), test_batch=16)
    return {"model": model, "train_data": data, "eval_data": data, "config": config}
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def written(folder, text):
    path = folder / "wrong.py"
    path.write_text(text)
    return path


def test_settings_are_changed_by_flags_and_the_folder_is_named_after_the_file(mine):
    arguments = command.parse([mine, "--epochs", "3", "--optim.lr", "0.01", "--workers", "2"])
    assert arguments.config == replace(
        load_recipe_file(mine).config, epochs=3, optim=lbq.train.OptimConfig(lr=0.01)
    )
    assert (arguments.out, arguments.options.workers) == (Path("runs/mine"), 2)
    assert command.parse([mine, "--out", "there"]).out == Path("there")


@pytest.mark.parametrize("flag", ["--data", "--model.timesteps", "--task"])
def test_the_file_gives_model_and_data_so_no_flag_does(mine, flag):
    with pytest.raises(UsageError, match="nrecognized options"):
        command.parse([mine, flag, "2"])


def test_a_file_trains_and_the_same_command_resumes_bit_for_bit(mine, tiny, tmp_path, capsys):
    words = ["train", mine, "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    out = capsys.readouterr().out
    assert "training: Sequential" in out
    assert "accuracy after the last epoch" in out
    torch.rand(5)  # what this process drew must not matter
    assert main([*words, "--out", str(tmp_path / "cut"), "--stop-at", "3"]) == 0
    assert "the same command continues" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "cut"), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["ending"], found["step"], found["last"]["count"]) == ("finished", 8, 64)
    assert "continuing at step 3" in captured.err
    assert tiny.final_hashes(tmp_path / "cut") == tiny.final_hashes(tmp_path / "whole")
    assert main([*words, "--out", str(tmp_path / "cut"), "--seed", "9"]) == 1
    assert "--allow-changed config.seed" in capsys.readouterr().err


def test_initial_weights_are_the_same_each_time_and_the_callers_generator_is_left_alone(mine):
    state = torch.get_rng_state()
    first = load_recipe_file(mine)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    second = load_recipe_file(mine)
    torch.set_rng_state(state)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    assert first.data.digest == second.data.digest


def test_a_file_may_return_a_recipe(tmp_path, tiny):
    path = tmp_path / "short.py"
    path.write_text(
        "from dataclasses import replace\n\nfrom lbq.train import RECIPES\n\n\n"
        "def recipe():\n    return replace(RECIPES['smoke'](), epochs=1)\n"
    )
    arguments = command.parse([str(path), "--model.timesteps", "1", "--data", "elsewhere"])
    expected = replace(lbq.train.RECIPES["smoke"](), epochs=1)
    assert arguments.recipe.epochs == 1
    assert arguments.recipe.model == replace(expected.model, timesteps=1)
    assert arguments.recipe.data.source == "elsewhere"
    assert arguments.out == Path("runs/short")


def test_a_loss_metrics_and_time_of_the_users_own_reach_the_run(tmp_path, capsys):
    path = tmp_path / "regression.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\nimport lbq\nfrom sibling import error\n\n\n"
        "def recipe():\n"
        "    x = torch.randn(32, 4, 6)\n"
        "    data = x, x.mean((1, 2))[:, None]\n"
        "    model = nn.Sequential(lbq.MeanOverTime(), nn.Linear(6, 1))\n"
        "    return dict(model=model, train_data=data, eval_data=data, time_first=True,\n"
        "                config=lbq.TrainConfig(epochs=2, batch=8),\n"
        "                loss=nn.functional.mse_loss, metrics={'error': error})\n"
    )
    (tmp_path / "sibling.py").write_text(
        "def error(output, target):\n    return (output - target).abs().squeeze(1)\n"
    )
    before = list(sys.path)
    assert main(["train", str(path), "--out", str(tmp_path / "run"), "--json"]) == 0
    assert sys.path == before
    found = json.loads(capsys.readouterr().out)
    assert found["last"]["accuracy"] is None
    assert found["last"]["metrics"]["error"] > 0


def test_a_run_without_evaluations_says_so(mine, tmp_path, capsys):
    Path(mine).write_text(MINE.replace('"eval_data": data', '"eval_data": None'))
    assert main(["train", mine, "--out", str(tmp_path / "run")]) == 0
    assert "finished after 8 steps, without evaluations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", r"wrong\.py has no function recipe\(\)"),
        ("recipe = 3\n", r"wrong\.py has no function recipe\(\)"),
        ("def recipe():\n    return 3\n", "must return an lbq.train.Recipe or a dictionary.*int"),
        ("def recipe():\n    return {'model': 1, 'out': 2}\n",
         "lacks train_data, eval_data, config and has unknown keys: out; it takes model, "),
        ("def recipe(:\n", r"wrong\.py, line 1: SyntaxError: "),
        ("import torch\n\nnothing\n", r"wrong\.py, line 3: NameError: name 'nothing'"),
        ("def recipe():\n    import torch\n    return torch.zeros(2) @ torch.zeros(3)\n",
         r"wrong\.py, line 3: RuntimeError: "),
        ("import lbq\n\n\ndef recipe():\n    return lbq.TrainConfig(epochs=0, batch=1)\n",
         r"wrong\.py, line 5: RecipeError: epochs must be at least 1"),
        ("import sys\n\nsys.exit('stop')\n", r"wrong\.py, line 3: SystemExit: stop"),
        ("import not_there\n", r"wrong\.py, line 1: ModuleNotFoundError: No module named 'not_t"),
        (MINE.replace('"model": model', '"model": 3'), "model of recipe.*torch.nn.Module, got int"),
        (MINE.replace('"config": config', '"config": {}'), "config of.*lbq.TrainConfig, got dict"),
        (MINE.replace('"eval_data": data', '"eval_data": 3'), "eval_data must be a map-style"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_shown_with_its_line(tmp_path, capsys, text, message):
    path = written(tmp_path, text)
    with pytest.raises(RecipeError, match=message):
        load_recipe_file(path)
    assert main(["train", str(path)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1


def test_an_error_in_a_file_beside_it_is_shown_there(tmp_path):
    (tmp_path / "broken_sibling.py").write_text("def build():\n    raise ValueError('no luck')\n")
    path = written(tmp_path, "from broken_sibling import build\n\nrecipe = build\n")
    with pytest.raises(RecipeError, match=r"broken_sibling\.py, line 2: ValueError: no luck"):
        load_recipe_file(path)


@pytest.mark.parametrize("name", ["none.py", "none.txt"])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(RecipeError, match=name):
        load_recipe_file(tmp_path / name)


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "lbq.cli", *words],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.multi
def test_a_file_runs_on_two_devices_and_under_a_supervisor(mine, tmp_path):
    out = str(tmp_path / "run")
    done = run("train", mine, "--devices", "2", "--supervise", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "2 x cpu" in done.stdout
    assert done.stdout.count("accuracy after the last epoch") == 1
    done = run("train", mine, "--devices", "3", "--out", out)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 3 devices cannot split a batch of 16")
