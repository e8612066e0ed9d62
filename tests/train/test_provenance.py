import pytest
import torch

import lbq
from lbq.errors import RunError
from lbq.train import provenance


def test_a_run_knows_its_code_its_versions_and_its_data():
    found = provenance.provenance("abc")
    assert len(found["code"]) == 64
    assert found["data"] == "abc"
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["lbq"] == lbq.__version__
    assert found == provenance.provenance("abc")


def test_an_edit_of_the_library_changes_the_digest_of_its_code(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path)
    (tmp_path / "module.py").write_text("x = 1")
    before = provenance.code_digest.__wrapped__()
    (tmp_path / "module.py").write_text("x = 2")
    assert provenance.code_digest.__wrapped__() != before
    assert provenance.git_commit.__wrapped__() is None  # a folder that is no checkout


BEFORE = {"recipe": {"epochs": 3, "optim": {"lr": 0.1}}, "data": "abc", "commit": "1"}


def test_equal_runs_may_continue_whatever_the_commit_is_called():
    assert provenance.check_same_run(BEFORE, BEFORE | {"commit": "2"}, allowed=()) == []


def test_every_change_is_listed_with_the_flag_that_allows_it():
    now = {"recipe": {"epochs": 4, "optim": {"lr": 0.2}}, "data": "abd", "commit": "1"}
    with pytest.raises(RunError) as caught:
        provenance.check_same_run(BEFORE, now, allowed=["recipe.epochs"])
    words = str(caught.value)
    assert "data: 'abc' -> 'abd'" in words
    assert "recipe.optim.lr: 0.1 -> 0.2" in words
    assert "--allow-changed data recipe.optim.lr" in words
    assert "recipe.epochs" not in words


def test_an_allowed_key_allows_what_is_inside_it_and_is_reported():
    now = {"recipe": {"epochs": 4, "optim": {"lr": 0.2}}, "data": "abc", "commit": "1"}
    changed = provenance.check_same_run(BEFORE, now, allowed=["recipe"])
    assert changed == ["recipe.epochs: 3 -> 4", "recipe.optim.lr: 0.1 -> 0.2"]
    with pytest.raises(RunError):
        provenance.check_same_run(BEFORE, now, allowed=["rec"])


def test_the_same_data_may_lie_elsewhere_but_not_other_data():
    then = {"recipe": {"data": {"source": "here"}}, "data": "abc"}
    there = {"recipe": {"data": {"source": "there"}}, "data": "abc"}
    assert provenance.check_same_run(then, there, allowed=()) == []
    with pytest.raises(RunError, match=r"recipe\.data\.source"):
        provenance.check_same_run(then, there | {"data": "abd"}, allowed=["data"])


def test_metadata_of_an_unknown_program_is_a_difference_and_no_crash():
    for recipe in (None, [], "words", {"data": 3}):
        with pytest.raises(RunError, match="recipe"):
            provenance.check_same_run({"recipe": recipe}, BEFORE, allowed=())
