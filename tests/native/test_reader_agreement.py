"""The reader in C++ and lbq.load_network say the same of every file, by the same rule."""

import random
import subprocess

import pytest
from bundles import EditableBundle, tiny_bundles
from formats.bundle import mutate
from formats.bundle.test_rules import CASES
from native import crafted_bundles
from native.make_corpus import CORPUS, answers_of

from lbq.errors import BoundError
from lbq.formats import BundleError, load_network


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
        expected[path] = rule if is_integer else "real-numbers"
    assert len(expected) > 60
    assert native_results(lbq_run, list(expected)) == expected


def edit(path, place, value):
    """Return an edit that changes one place of a node, or of the manifest."""

    def change(draft):
        *folders, last = place.split("/")
        box = draft.manifest if path is None else draft.node(path)
        for folder in folders:
            box = box[folder]
        box[last] = value

    return change


OPERATORS = {
    "attention": {
        "offset_of_another_shape": ("shape", edit("position", "tensors/bias/shape", [2, 1, 8])),
        "offset_without_a_constant": ("tensors", edit("position", "tensors/bias", None)),
        "offset_of_levels": ("signal", edit("position", "inputs", ["input"])),
        "order_that_is_none": ("shape", edit("q.heads", "settings/order", [0, 1, 1])),
        "order_of_other_axes": ("shape", edit("q.heads", "settings/order", [0, 1, 2, 3])),
        "another_size": ("shape", edit("q.heads", "settings/shape", [2, 4, 5])),
        "four_axes": ("value", edit("q.heads", "settings/shape", [2, 4, 2, 2])),
        "nine_factors": ("value", edit("q.heads", "settings/sizes", [2, 2, 2, 2, 2, 1, 1, 1, 1])),
        "matrices_that_do_not_fit": ("shape", edit("q.heads", "settings/shape", [4, 2, 4])),
        "product_of_currents": ("signal", edit("gated", "inputs", ["attended", "currents"])),
        "one_matrix": ("value", edit("scores", "inputs", ["q.heads"])),
        "product_of_two_times": ("shape", edit("gated", "inputs", ["attended", "input"])),
        "product_of_other_shapes": ("shape", edit("gated", "inputs", ["attended", "scores"])),
        "part_behind_the_end": ("shape", edit("gate", "settings/stop", 9)),
        "part_of_nothing": ("shape", edit("gate", "settings/start", 1)),
        "part_of_a_missing_axis": ("value", edit("gate", "settings/axis", 3)),
        "bound_of_a_move": ("value", edit("gate", "bound", {"low": 0, "high": 1, "bits": 16})),
        "product_without_a_bound": ("value", edit("gated", "bound", None)),
        "outputs_with_and_without_time": ("signal", edit("boxes", "settings/over_time", "sum")),
        "output_that_is_read": ("order", edit("fc", "inputs", ["boxes"])),
        "readout_of_a_readout": ("unread", edit("boxes", "inputs", ["classes"])),
        "input_of_four_axes": ("shape", edit(None, "input_shape", [3, 4, 4, 1])),
    },
    "unet": {
        "window_of_two_axes": ("shape", edit("stem", "settings/stride", [1, 1])),
        "pool_of_two_axes": ("shape", edit("pool", "settings/padding", [1, 1])),
        "factors_of_two_axes": ("shape", edit("near", "settings/factors", [2, 2])),
        "unknown_fill": ("value", edit("near", "settings/fill", "bilinear")),
        "zeros_of_two_axes": ("shape", edit("padded", "settings/before", [1, 1])),
        "fewer_zeros": ("shape", edit("padded", "settings/before", [0])),
        "joined_along_another_axis": ("shape", edit("joined", "settings/axis", 1)),
        "joined_along_a_missing_axis": ("shape", edit("joined", "settings/axis", 2)),
        "levels_joined_with_currents": ("signal", edit("joined", "inputs", ["up", "near.part"])),
        "joined_with_nothing": ("value", edit("joined", "inputs", ["up"])),
        "still_move": ("signal", edit("joined", "settings/has_time", False)),
        "other_channels_than_were_proven": ("bound", edit("odd", "settings/start", 0)),
    },
}


@pytest.mark.parametrize("name", OPERATORS)
def test_rules_of_operators_have_the_same_name_in_both(name, lbq_run, tmp_path):
    expected = {}
    for case, (rule, change) in OPERATORS[name].items():
        draft = EditableBundle((CORPUS / f"{name}.lbq").read_bytes())
        change(draft)
        path = tmp_path / case
        path.write_bytes(draft.pack())
        expected[path] = rule
    assert {path: load_result(path) for path in expected} == expected
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


def test_crafted_bundles_give_the_same_result(lbq_run, tmp_path):
    """JSON as text, wirings and tensors of one bundle; crafted_bundles.py goes through the rest."""
    data = (CORPUS / "features.lbq").read_bytes()
    expected = {}
    for make in (crafted_bundles.texts, crafted_bundles.wirings, crafted_bundles.tensors):
        for number, (_, crafted) in enumerate(make(data)):
            path = tmp_path / f"{make.__name__}{number}"
            path.write_bytes(crafted)
            expected[path] = load_result(path)
    assert len(expected) > 1000
    assert native_results(lbq_run, list(expected)) == expected


@pytest.mark.parametrize("name", [path.stem for path in sorted(CORPUS.glob("*.txt"))])
def test_the_committed_bundles_answer_as_ever(name):
    network = load_network(CORPUS / f"{name}.lbq")
    answers = [int(line) for line in (CORPUS / f"{name}.txt").read_text().split()]
    assert answers_of(network) == answers
