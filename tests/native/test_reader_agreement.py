"""The reader in C++ and lbq.load_network say the same of every file, by the same rule."""

import random
import subprocess

import pytest
from bundles import EditableBundle, tiny_bundles
from formats import mutate
from formats.test_rules import CASES
from native.make_corpus import CORPUS, answers_of

from lbq.errors import BoundError
from lbq.formats import BundleError, load_network

TORCH_ONLY = {"name_that_torch_needs"}
"""Which names torch's modules have given away is no affair of the file."""


def load_result(path):
    try:
        load_network(path)
    except BundleError as error:
        return error.rule
    except BoundError:
        return "bound"
    return "ok"


def native_results(lbq_run, paths):
    lines = lbq_run("--check", *paths, text=True).stdout.splitlines()
    return {path: line.split(": ")[1] for path, line in zip(paths, lines, strict=True)}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return tiny_bundles(tmp_path_factory.mktemp("agreement") / "tiny.lbq")


def test_every_rule_has_the_same_name_in_both(lbq_run, bundles, tmp_path):
    expected = {}
    for name, (rule, is_integer, edit) in CASES.items():
        draft = EditableBundle(bundles[is_integer])
        data = edit(draft)
        path = tmp_path / name
        path.write_bytes(draft.pack() if data is None else data)
        if is_integer and name not in TORCH_ONLY:
            expected[path] = rule
        elif not is_integer:
            expected[path] = "real-numbers"
    assert len(expected) > 60
    assert native_results(lbq_run, list(expected)) == expected


def test_a_folder_and_a_pipe_are_no_bundles(lbq_run, tmp_path):
    subprocess.run(["mkfifo", tmp_path / "pipe"], check=True)
    paths = [tmp_path, tmp_path / "pipe"]
    assert set(native_results(lbq_run, paths).values()) == {"file"}


@pytest.mark.parametrize("name", ["tiny-event", "attention", "unet"])
def test_mutants_give_the_same_result(name, lbq_run, tmp_path):
    rng = random.Random(11)
    original = (CORPUS / f"{name}.lbq").read_bytes()
    expected = {}
    for number in range(500):
        path = tmp_path / str(number)
        path.write_bytes(mutate.mutate(original, rng)[1])
        expected[path] = load_result(path)
    assert sum(rule == "ok" for rule in expected.values()) > 10
    assert native_results(lbq_run, list(expected)) == expected


@pytest.mark.parametrize("name", [path.stem for path in sorted(CORPUS.glob("*.txt"))])
def test_the_committed_bundles_answer_as_ever(name):
    network = load_network(CORPUS / f"{name}.lbq")
    answers = [int(line) for line in (CORPUS / f"{name}.txt").read_text().split()]
    assert answers_of(network) == answers
