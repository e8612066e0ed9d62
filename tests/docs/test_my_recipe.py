"""The file that docs/training.md shows trains, and its run leaves through every command."""

import json
from pathlib import Path

import follow
import pytest

from lbq.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the file of the page, and the data that it reads."""
    monkeypatch.chdir(tmp_path)
    bodies = [block.body for block in follow.blocks(PAGE) if block.kind == "python"]
    (data,) = (body for body in bodies if "np.savez" in body)
    exec(data, {})
    (recipe,) = (body for body in bodies if "def recipe():" in body)
    Path("my_recipe.py").write_text(recipe)
    return tmp_path


def test_the_recipe_file_of_the_page_does_what_the_page_says(folder, capsys):
    model = ["--model", "my_recipe.py"]
    assert main(["train", "./my_recipe.py", "--epochs", "2", "--batch", "16"]) == 0
    assert main(["eval", "runs/my_recipe", *model]) == 0
    words = ["lower", "runs/my_recipe", *model, "--check", "40", "--calibrate", "16"]
    assert main(words) == 0
    assert "on 40 test samples: accuracy" in capsys.readouterr().out
    assert main(["eval", "net.lbq", *model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 40
    assert main(["export", "runs/my_recipe", *model, "--to", "pt2", "--out", "net.pt2"]) == 0
    assert main(["report", "runs/my_recipe", *model, "--limit", "10"]) == 0
    assert Path("report.html").stat().st_size > 1000
