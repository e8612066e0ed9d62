"""The native library as a file: what is compiled for which machine, and one that does not load."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
import torch

import lbq

ROOT = Path(__file__).parents[2]
PACKAGE = Path(lbq.__file__).parent

PROGRAM = """
import torch, lbq
from lbq.kernels import force_implementation, native_scan
neuron, currents = lbq.BurstLIF(), torch.randn(2, 3, 4)
print(native_scan.isa(), torch.equal(neuron(currents), neuron(currents)))
with force_implementation("plain"):
    print(neuron(currents).shape)
from lbq.runtime.native_engine import _library
try:
    _library()
except lbq.LBQError as error:
    print(error)
"""


@pytest.fixture
def setup(monkeypatch):
    """The module setup.py."""
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("setup_of_lbq", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def simd_builds(setup):
    """``simd_builds(machine)``: what setup.py compiles for which instruction set."""
    return setup.simd_builds


def test_a_build_that_cannot_import_torch_finds_the_one_it_is_installed_beside(setup, monkeypatch):
    monkeypatch.delenv("LBQ_TORCH", raising=False)
    monkeypatch.setattr(setup, "find_spec", lambda name: None)  # as in pip's isolated builds
    assert setup.torch_folder() == Path(torch.__file__).parent


def test_a_build_without_torch_says_so_and_how_to_add_the_kernels(setup, capsys):
    build = setup.BuildNative(setuptools.Distribution({"ext_modules": []}))
    build.ensure_finalized()
    build.run()
    (line,) = capsys.readouterr().err.splitlines()
    assert "torch is not in this environment" in line
    assert "`pip install .` adds them" in line


def test_a_build_without_a_compiler_says_so_and_how_to_add_the_kernels(tmp_path):
    words = ["build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    environment = {name: os.environ[name] for name in os.environ if name != "LBQ_REQUIRE_NATIVE"}
    done = subprocess.run(
        [sys.executable, "setup.py", *words],
        env={**environment, "CC": "false", "CXX": "false"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stderr.splitlines()[-1]
    assert "no native kernels, because the C++ compiler failed (false)" in last
    assert "`pip install .` adds them" in last


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_every_arm_processor_gets_the_neon_kernels(simd_builds, machine):
    builds = simd_builds(machine)
    assert list(builds) == ["neon"]
    assert len(builds["neon"][0]) == len(list((ROOT / "native").rglob("*-simd.cc"))) == 6


def test_x86_gets_every_vector_unit_and_other_machines_none(simd_builds):
    assert len(simd_builds("x86_64")) == 6
    assert simd_builds("riscv64") == {}


@pytest.fixture
def package_with(tmp_path):
    """``package_with(damage)``: the package with a damaged library; returns what it prints."""

    def call(damage):
        source = tmp_path / "src"
        shutil.copytree(PACKAGE, source / "lbq", ignore=shutil.ignore_patterns("__pycache__"))
        (library,) = (source / "lbq").glob("_native*.so")
        damage(library)
        environment = {**os.environ, "PYTHONPATH": str(source)}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )

    return call


def cut_short(path):
    path.write_bytes(path.read_bytes()[:5000])


def replaced_by_text(path):
    path.write_text("not a library\n" * 1000)


def without_torch_operators(path):
    code = path.with_suffix(".c")
    code.write_text("int lbq_nothing(void) { return missing_symbol(); } int missing_symbol(void);")
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", code, "-o", path], check=True)


@pytest.mark.skipif(not list(PACKAGE.glob("_native*.so")), reason="nothing to damage")
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut_short, "bytes"),
        (replaced_by_text, "invalid ELF header"),
        (without_torch_operators, "does not load"),
    ],
)
def test_a_library_that_does_not_load_is_said_and_plain_torch_runs(package_with, damage, why):
    done = package_with(damage)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "None True"
    assert why in done.stderr
    assert "run on plain torch" in done.stderr
    assert 'backend "native" needs' in lines[-1]
    assert why in lines[-1]
