"""A run and the bundle of its network, made once for the tests of all commands."""

import pytest

from lbq.cli import lower
from lbq.cli.main import main
from lbq.errors import FormatError
from lbq.train.recipe import write_recipe


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny):
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = folder / "tiny.json"
    recipe.write_text(write_recipe(tiny.tiny_recipe(epochs=1)))
    assert main(["train", str(recipe), "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="session")
def bundle(trained):
    """Return its network as an integer bundle; tests that use it run as shipped."""
    path = trained.parent / "net.lbq"
    assert main(["lower", str(trained), "--out", str(path), "--calibrate", "32"]) == 0
    return path


@pytest.fixture
def without_data(monkeypatch):
    """Let no command find its data, nor look for them on the hub."""

    def gone(*arguments, **options):
        raise FormatError("there is no folder data/x")

    monkeypatch.setattr(lower, "open_samples", gone)
