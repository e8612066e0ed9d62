"""Version, types and pinned versions agree between files."""

import re
import tomllib
from pathlib import Path

import lbq

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_all_files_know_the_same_version():
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "lbq.__version__"}
    version = lbq.__version__
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version
    changelog = (ROOT / "CHANGELOG.md").read_text().replace("\n## Unreleased\n", "\n")
    assert re.search(r"^## (\S+)", changelog, re.M)[1] == version


def test_one_package_is_installed():
    assert PROJECT["tool"]["setuptools"]["packages"]["find"] == {"where": ["src"]}
    assert {path.parent.name for path in (ROOT / "src").glob("*/__init__.py")} == {"lbq"}


def test_types_travel_with_the_package():
    assert (ROOT / "src" / "lbq" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["lbq"]


def test_every_pinned_version_is_exact():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    names = [pin.split("==")[0].lower().replace("_", "-") for pin in pins]
    assert len(set(names)) == len(names)
