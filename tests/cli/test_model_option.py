"""``lbq eval | lower | export | report RUN --model my_recipe.py``, for runs without a recipe."""

import json
import re

import own_recipe_files as own
import pytest
import torch

import lbq
from lbq.cli.main import main
from lbq.cli.samples import load_task, recover_bytes, sample_batches
from lbq.errors import ParameterError
from lbq.train.recipe_file import load_recipe_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two recipe files and their runs."""
    folder = tmp_path_factory.mktemp("own")
    for name, text in (("images", own.IMAGES), ("regression", own.REGRESSION)):
        (folder / f"{name}.py").write_text(text)
        words = ["--log-every", "2", "--out", str(folder / name)]
        assert main(["train", str(folder / f"{name}.py"), *words]) == 0
    return folder


@pytest.fixture(scope="module")
def bundles(folder):
    for name in ("images", "regression"):
        words = ["--out", str(folder / f"{name}.lbq"), "--calibrate", "32"]
        assert main(["lower", str(folder / name), "--model", f"{folder / name}.py", *words]) == 0
    return folder


def printed(capsys, *words):
    """Run a command with --json and return what it printed."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_eval_gives_the_accuracy_of_the_runs_last_evaluation(folder, capsys):
    task = load_recipe_file(folder / "images.py")
    last = lbq.load_run(folder / "images", task.model).evaluations[-1]
    found = printed(capsys, "eval", folder / "images", "--model", folder / "images.py")
    assert (found["correct"], found["count"], found["step"]) == (last.correct, 60, 12)
    assert found["loss"] == pytest.approx(last.loss)
    assert main(["eval", str(folder / "images"), "--model", str(folder / "images.py")]) == 0
    assert f"test accuracy {last.accuracy:.2%} ({last.correct} of 60)" in capsys.readouterr().out


def test_eval_gives_loss_and_metrics_where_there_is_no_accuracy(folder, capsys):
    words = ["eval", folder / "regression", "--model", folder / "regression.py"]
    found = printed(capsys, *words)
    assert (found["correct"], found["accuracy"], found["count"]) == (None, None, 64)
    assert main(list(map(str, words))) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"test loss {found['loss']:.4g}, error {found['metrics']['error']:.4g}, after 2 epochs"
    )


def test_integers_answer_as_the_trained_network(bundles, capsys):
    for name in ("images", "regression"):
        model = ["--model", bundles / f"{name}.py"]
        real = printed(capsys, "eval", bundles / name, *model)
        integer = printed(capsys, "eval", bundles / f"{name}.lbq", *model)
        assert integer["count"] == real["count"]
        assert integer["loss"] == pytest.approx(real["loss"], rel=0.1, abs=0.02)
        assert abs((integer["correct"] or 0) - (real["correct"] or 0)) <= 6
    assert integer["metrics"]["error"] == pytest.approx(real["metrics"]["error"], abs=0.02)


def test_check_compares_on_the_same_bytes(folder, tmp_path, capsys):
    words = ["lower", folder / "images", "--model", folder / "images.py", "--check", "30"]
    found = printed(capsys, *words, "--out", tmp_path / "net.lbq")
    assert found["checked"] == 30
    assert abs(found["accuracy"] - found["accuracy_real"]) <= 0.2
    assert found["levels_moved"] < 0.1
    words = ["lower", folder / "regression", "--model", folder / "regression.py", "--check", "30"]
    found = printed(capsys, *words, "--out", tmp_path / "net.lbq")
    assert found["error"] == pytest.approx(found["error_real"], abs=0.02)
    assert "accuracy" not in found


def test_a_bundle_of_real_numbers_needs_no_preprocessing(folder, tmp_path, capsys):
    text = own.IMAGES.replace("    model.preprocessing =", "    unused =")
    path = tmp_path / "without.py"
    path.write_text(text)
    words = ["lower", str(folder / "images"), "--model", str(path), "--out", str(tmp_path / "n")]
    assert main(words) == 1
    assert "set model.preprocessing = lbq.Pixels(mean=..., std=...)" in capsys.readouterr().err
    found = printed(capsys, *words, "--bits", "float", "--check", "20")
    assert (found["is_integer"], found["accuracy"]) == (False, found["accuracy_real"])
    expected = lbq.load_run(folder / "images", load_task(path).model).model
    network = lbq.load_network(tmp_path / "n")
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(network(x), expected(x), rtol=1e-4, atol=1e-4)


def test_samples_that_are_no_bytes_are_refused(folder, tmp_path, capsys):
    path = tmp_path / "other.py"
    path.write_text(own.IMAGES.replace("std=(0.25, 0.25, 0.25)", "std=(0.2, 0.2, 0.2)"))
    words = ["lower", str(folder / "images"), "--model", str(path), "--out", str(tmp_path / "n")]
    assert main([*words, "--check", "10"]) == 1
    assert not (tmp_path / "n").exists()
    assert "the samples are not bytes 0..255 with model.preprocessing" in capsys.readouterr().err


def test_bytes_are_recovered_exactly():
    raw = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    pixels = lbq.Pixels(mean=(0.49, 0.48, 0.45), std=(0.2, 0.21, 0.22))
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (pixels.mean, pixels.std))
    real = (raw / 255 - mean) / std
    assert torch.equal(recover_bytes(real, pixels, channel_axis=1), raw)
    over_time = real.unsqueeze(0).repeat(2, 1, 1, 1, 1)
    assert torch.equal(recover_bytes(over_time, pixels, channel_axis=2)[1], raw)
    assert torch.equal(recover_bytes(raw.float(), None, channel_axis=1), raw)
    for wrong in (raw.float() + 0.5, raw.float() - 256, raw.float() + 256):
        with pytest.raises(ParameterError, match="are not bytes"):
            recover_bytes(wrong, None, channel_axis=1)


def test_samples_are_spread_over_a_users_data(folder):
    task = load_task(folder / "regression.py")
    (some,) = sample_batches(task.data, limit=4, batch=4, preprocessing=None)
    x, target = task.data.test.tensors
    assert torch.equal(some.real, x[[0, 16, 32, 48]].transpose(0, 1))
    assert torch.equal(some.raw.float(), some.real)
    assert torch.equal(some.target, target[[0, 16, 32, 48]])


def test_an_exported_run_answers_in_another_engine(bundles, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    out, model = tmp_path / "net.onnx", ["--model", bundles / "images.py"]
    words = ["--to", "onnx", "--out", out, "--calibrate", "32"]
    assert not printed(capsys, "export", bundles / "images", *model, *words)["replaced"]
    ours = printed(capsys, "eval", bundles / "images.lbq", *model)
    theirs = printed(capsys, "eval", out, *model)
    assert theirs["correct"] == ours["correct"]
    assert theirs["loss"] == ours["loss"]


def test_a_report_shows_curves_levels_and_costs_of_a_users_run(folder, tmp_path, capsys):
    out = tmp_path / "report.html"
    found = printed(
        capsys, "report", folder / "images", "--model", folder / "images.py",
        "--out", out, "--limit", "20",
    )  # fmt: skip
    assert found["notes"] == []
    html = out.read_text()
    sections = re.findall(r'<section id="(\w+)">', html)
    assert sections == [
        "curves", "energy", "costs", "levels", "steps", "membranes", "recipe", "provenance"
    ]  # fmt: skip
    assert "Model Sequential, trained by lbq.fit" in html
    assert "Test accuracy" in html


def test_a_report_copes_without_accuracy_and_compares_with_a_recipe(
    folder, trained, tmp_path, capsys
):
    out, model = tmp_path / "report.html", ["--model", folder / "regression.py"]
    printed(capsys, "report", folder / "regression", *model, "--out", out, "--limit", "20")
    html = out.read_text()
    assert "Test loss" in html
    assert "accuracy" not in html[: html.index("provenance")]
    assert ">error</th>" in html
    runs = [folder / "regression", trained]
    printed(capsys, "report", *runs, *model, "--out", out, "--limit", "20")
    html = out.read_text()
    assert "2 runs compared" in html
    assert "own data" in html


@pytest.mark.parametrize("command", ["eval", "lower", "report"])
def test_without_the_option_the_message_names_it(folder, tmp_path, capsys, command):
    words = [command, str(folder / "images")]
    out = [] if command == "eval" else ["--out", str(tmp_path / "out")]
    assert main([*words, *out]) == 1
    assert "--model my_recipe.py" in capsys.readouterr().err


def test_what_does_not_fit_the_option_is_refused(folder, bundles, trained, tmp_path, capsys):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("import lbq\n\nrecipe = lbq.train.RECIPES['smoke']\n")
    untested = tmp_path / "untested.py"
    untested.write_text(own.IMAGES.replace('"eval_data": (x[:60], y[:60])', '"eval_data": None'))
    wider = tmp_path / "wider.py"
    wider.write_text(own.IMAGES.replace("BurstLIF()", "BurstLIF(max_level=3)"))
    images = folder / "images.py"
    for words, message, code in (
        (["eval", folder / "images", "--model", recipe], "leave out --model", 1),
        (["eval", folder / "images", "--model", untested], "no eval_data", 1),
        (["eval", folder / "images", "--model", wider], "other modules or settings", 1),
        (["eval", folder / "images", "--model", images, "--data", "x"], "leave out --data", 2),
        (["eval", trained, "--model", images], "trained by a recipe", 1),
        (["eval", folder / "images.lbq"], "--model my_recipe.py", 1),
        (["eval", folder / "images.lbq", "--model", images, "--size", "8"], "--size", 2),
        (["lower", folder / "images", "--model", images, "--size", "8"], "--size", 2),
        (["lower", "pocket-cifar10", "--model", images], "comes with the library", 2),
        (["lower", folder / "images", "--model", untested, "--check", "3"], "needs eval_data", 1),
        (["export", folder / "images.lbq", "--to", "pt2", "--out", tmp_path / "n.pt2",
          "--model", images], "--model", 2),
    ):  # fmt: skip
        assert main(list(map(str, words))) == code, words
        assert message in capsys.readouterr().err


def test_preprocessing_may_be_added_after_training(tmp_path, capsys):
    path = tmp_path / "late.py"
    path.write_text(own.REGRESSION.replace("    model.preprocessing = None\n", ""))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    words = ["lower", str(tmp_path / "run"), "--model", str(path), "--out", str(tmp_path / "n")]
    assert main(words) == 1
    assert "set model.preprocessing" in capsys.readouterr().err
    path.write_text(own.REGRESSION)
    assert main(words) == 0


def test_a_file_may_use_the_librarys_data_with_a_network_of_its_own(tmp_path, capsys):
    path = tmp_path / "mixed.py"
    path.write_text(
        own.IMAGES.replace("nn.Linear(8, 3)", "nn.Linear(8, 10)")
        .replace("    model.preprocessing =", "    unused =")
        .replace("(x, y)", "data").replace("(x[:60], y[:60])", "data")
        .replace(
            "def recipe():\n",
            "def recipe():\n"
            "    config = lbq.data.DataConfig(source='synthetic', size=8, limit_test=30)\n"
            "    data = lbq.data.open_data(config, 'unused')\n",
        )
    )  # fmt: skip
    model = ["--model", path]
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    real = printed(capsys, "eval", tmp_path / "run", *model)
    words = ["--out", tmp_path / "net.lbq", "--check", "20"]
    assert printed(capsys, "lower", tmp_path / "run", *model, *words)["checked"] == 20
    integer = printed(capsys, "eval", tmp_path / "net.lbq", *model)
    assert integer["loss"] == pytest.approx(real["loss"], rel=0.1)
    assert integer["count"] == real["count"] == 30
    printed(capsys, "report", tmp_path / "run", *model, "--out", tmp_path / "r.html")
