import json

import pytest

from lbq.cli.main import main
from lbq.train.recipe import write_recipe


@pytest.fixture
def run(tmp_path, tiny, capsys):
    path = tmp_path / "tiny.json"
    path.write_text(write_recipe(tiny.tiny_recipe(epochs=1)))
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return str(tmp_path / "run")


def test_the_accuracy_of_a_run_is_told_in_words_and_as_data(run, capsys):
    assert main(["eval", run]) == 0
    words = capsys.readouterr().out
    assert "of 30)" in words
    assert "after 1 epochs (4 steps)" in words
    assert main(["eval", run, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert f"{found['accuracy']:.2%} ({found['correct']} of 30)" in words


def test_a_folder_without_a_run_is_a_user_error(tmp_path, capsys):
    assert main(["eval", str(tmp_path)]) == 1
    assert "has no checkpoint" in capsys.readouterr().err
