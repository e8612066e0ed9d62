"""A run and the bundle of its network, made once for the tests of all commands."""

import numpy as np
import pytest
from PIL import Image

from lbq.cli import lower_command
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


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Return a folder with images of two classes, 32 of 8 x 8 to train on and 20 to test."""
    folder = tmp_path_factory.mktemp("pictures")
    for split, count in (("train", 16), ("test", 10)):
        for label, name in enumerate(("dark", "light")):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                generator = np.random.default_rng((count, label, i))
                pixels = generator.integers(96 * label, 160 + 96 * label, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png")
    return folder


@pytest.fixture
def without_data(monkeypatch):
    """Let no command find its data, nor look for them on the hub."""

    def gone(*arguments, **options):
        raise FormatError("there is no folder data/x")

    monkeypatch.setattr(lower_command, "open_samples", gone)
