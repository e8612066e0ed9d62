"""The example of docs/deploy/lbq-run.md is C that compiles and runs."""

import re
import subprocess
from pathlib import Path

import pytest
from bundles import tiny_network

import lbq

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy" / "lbq-run.md"


@pytest.fixture(scope="module")
def example(native_build, tmp_path_factory):
    """The program of the page, compiled as a user would."""
    folder = tmp_path_factory.mktemp("example")
    (code,) = re.findall(r"```c\n(.*?)```", PAGE.read_text(), flags=re.S)
    (folder / "example.c").write_text(code)
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    archives = [native_build / "reader" / "liblbq_model.a", native_build / "liblbq.a"]
    libraries = ["-lstdc++", "-lpthread", "-lm", "-o", "example"]
    include = f"-I{ROOT / 'native' / 'include'}"
    command = ["gcc", *flags, include, "example.c", *archives, *libraries]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "example"


def test_it_answers_a_black_image(example, tmp_path):
    network = tiny_network()
    lbq.save_network(network, tmp_path / "net.lbq")
    answers = subprocess.check_output([example, tmp_path / "net.lbq"], text=True)
    expected = lbq.run_network(network, network.example(), backend="dense")[0].tolist()
    assert [int(line) for line in answers.split()] == expected


def test_it_says_what_is_wrong(example):
    done = subprocess.run([example, PAGE], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "does not begin like a bundle (rule magic)" in done.stderr
