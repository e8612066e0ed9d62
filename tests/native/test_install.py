"""``cmake --install``: the program, the headers, and a package that other projects find."""

import subprocess
from pathlib import Path

import pytest
from bundles import tiny_network

import lbq

CONSUMER = Path(__file__).parents[2] / "native" / "test" / "consumer"


@pytest.fixture(scope="module")
def installed(native_build, tmp_path_factory):
    """The prefix that everything was installed into."""
    prefix = tmp_path_factory.mktemp("installed")
    subprocess.run(["cmake", "--install", native_build, "--prefix", prefix], check=True)
    return prefix


def test_the_program_and_the_headers_are_there(installed):
    assert {path.name for path in (installed / "include").iterdir()} == {"lbq.h", "lbq_model.h"}
    help_text = subprocess.check_output([installed / "bin" / "lbq-run", "--help"])
    assert b"lbq-run NET.lbq" in help_text


def test_the_package_has_the_version_of_the_library(installed):
    (version,) = installed.rglob("lbq-config-version.cmake")
    assert f'set(PACKAGE_VERSION "{lbq.__version__}")' in version.read_text()


def test_another_project_finds_the_package_and_answers_a_bundle(installed, tmp_path):
    network, build = tiny_network(), tmp_path / "build"
    lbq.save_network(network, tmp_path / "net.lbq")
    configure = ["cmake", "-S", CONSUMER, "-B", build, f"-DCMAKE_PREFIX_PATH={installed}"]
    subprocess.run(configure, check=True)
    subprocess.run(["cmake", "--build", build], check=True)
    answers = subprocess.check_output([build / "answer", tmp_path / "net.lbq"], text=True)
    expected = lbq.run_network(network, network.example())[0].tolist()
    assert [int(line) for line in answers.split()] == expected
