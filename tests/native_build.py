"""lbq-run and its library, built by cmake as .ci/native builds them."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def native_build():
    """Return the folder of lbq-run; what CI has built already is not built again."""
    if shutil.which("cmake") is None and "LBQ_REQUIRE_NATIVE" not in os.environ:
        pytest.skip("lbq-run needs cmake to be built")
    build = Path(os.environ.get("LBQ_CI_NATIVE_BUILD", ROOT / ".build-native")).absolute() / "plain"
    build.mkdir(parents=True, exist_ok=True)
    with open(build / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests' workers come here together
        subprocess.run(["cmake", "-S", ROOT / "native", "-B", build], check=True)
        subprocess.run(["cmake", "--build", build, "--target", "lbq-run"], check=True)
    return build


@pytest.fixture(scope="session")
def lbq_run(native_build):
    """``lbq_run(*arguments)``: run the program, return what it did; ``.program`` is its path."""

    def call(*arguments, **options):
        command = [call.program, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, check=False, **options)

    call.program = native_build / "lbq-run"
    return call
