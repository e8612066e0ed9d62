"""What the README and the page about training show, runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run_blocks(path):
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.S)
    assert blocks
    exec("\n".join(blocks), {})


def test_the_examples_of_the_readme_run():
    run_blocks(ROOT / "README.md")


def test_the_example_of_the_page_about_training_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_blocks(ROOT / "docs" / "training.md")
    assert float(capsys.readouterr().out) > 0.2
