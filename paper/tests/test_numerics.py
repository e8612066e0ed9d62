import shutil
from pathlib import Path

import pytest

import lbq
from lbq.errors import RunError
from lbq_paper.experiments import digest_of, numerics_digest

PACKAGE = Path(lbq.__file__).parent


@pytest.fixture
def copy(tmp_path):
    hide = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(PACKAGE, tmp_path / "lbq", ignore=hide)
    shutil.copytree(PACKAGE.parents[1] / "native", tmp_path / "native")
    return tmp_path


def digest(copy):
    return digest_of(copy / "lbq", copy / "native")


def edit(path):
    path.write_text(path.read_text() + "\n")


def test_the_digest_does_not_depend_on_where_the_files_lie(copy):
    assert digest(copy) == numerics_digest()


@pytest.mark.parametrize(
    "name",
    [
        "lbq/functional/quantize.py",
        "lbq/kernels/plain_scan.py",
        "lbq/neurons/burst.py",
        "lbq/models/blocks.py",
        "lbq/data/augment.py",
        "lbq/train/train_step.py",
        "native/src/burst_scan-scalar.cc",
        "native/include/lbq.h",
    ],
)
def test_an_edit_where_numbers_are_made_changes_it(copy, name):
    edit(copy / name)
    assert digest(copy) != numerics_digest()


@pytest.mark.parametrize(
    "name",
    ["lbq/cli/main.py", "lbq/cost/op_counter.py", "lbq/train/recipes.py", "native/CMakeLists.txt"],
)
def test_an_edit_elsewhere_keeps_it(copy, name):
    edit(copy / name)
    assert digest(copy) == numerics_digest()


def test_a_file_that_moves_changes_it(copy):
    path = copy / "lbq/neurons/burst.py"
    path.rename(path.with_name("bursts.py"))
    assert digest(copy) != numerics_digest()


def test_without_the_sources_of_the_kernels_there_is_no_digest(tmp_path):
    with pytest.raises(RunError, match="from a checkout"):
        digest_of(PACKAGE, tmp_path / "native")
