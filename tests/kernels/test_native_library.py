"""The native library as a file: what is compiled for which machine, and one that does not load."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
from lbq.deploy.native_engine import _library
try:
    _library()
except lbq.LBQError as error:
    print(error)
"""


def sources_for(machine):
    """What setup.py would compile, by the machine's name."""
    spec = importlib.util.spec_from_file_location("setup_of_lbq", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {path.as_posix() for path in module.sources_for(machine)}


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_every_arm_processor_gets_the_neon_kernels(machine):
    found = sources_for(machine)
    neon = {path.relative_to(ROOT).as_posix() for path in (ROOT / "native").rglob("*-neon.cc")}
    assert len(neon) == 4
    assert neon <= found
    assert not any("avx" in path or "amx" in path for path in found)


def test_a_machine_without_vector_kernels_gets_the_scalar_ones():
    names = {Path(path).name for path in sources_for("riscv64")}
    assert {"kernels-scalar.cc", "burst_scan-scalar.cc"} <= names
    assert not any("neon" in name or "avx" in name for name in names)


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
