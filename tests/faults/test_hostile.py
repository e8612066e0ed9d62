"""Files from third parties: read as data, or refused; never executed."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import hostile
import pytest

import lbq
from lbq.cli.main import main
from lbq.config_io import dump_json, to_document
from lbq.errors import LBQError
from lbq.train import RunOptions, train
from lbq.train.recipe import read_recipe
from lbq.train.run_folder import evaluate_run, load_run

LAZY = "import_module(f'{__name__}.{package}')"
"""How ``lbq`` imports its own packages on first use; the name is one of a fixed list."""

RECIPE_FILE = Path(lbq.__file__).parent / "train" / "recipe_file.py"
"""Executes the Python file that a user types on the command line (`lbq train ./my_recipe.py`,
`--model my_recipe.py`). A path that was read from a file never gets there: the two tests below."""


def test_x1_none_of_twelve_hostile_checkpoints_is_executed(tiny, tmp_path):
    canary = tmp_path / "canary"
    made = hostile.make(tmp_path / "runs", canary)
    options = RunOptions(device="cpu", cache=tmp_path)
    for name, kind in made.items():
        out = tmp_path / "runs" / name
        for read in (
            lambda out=out: load_run(out),
            lambda out=out: load_run(out, step=1),
            lambda out=out: evaluate_run(out, cache=tmp_path, device="cpu"),
            lambda out=out: read_recipe(out / "recipe.json"),
            lambda out=out: train(tiny.tiny_recipe(), out, options),
        ):
            with pytest.raises(LBQError):
                read()
            assert not canary.exists(), kind


def test_x1_the_payloads_are_executed_where_they_are_unpickled(tmp_path):
    """Otherwise the test above proves nothing."""
    made = hostile.make(tmp_path / "runs", tmp_path / "canary")
    hits = 0
    for name, kind in made.items():
        path = tmp_path / "runs" / name / "checkpoints" / "000000001.model.safetensors"
        if kind.startswith(("pickle", "metadata")):
            code = f"import pickle; pickle.load(open({str(path)!r}, 'rb'))"
            subprocess.run([sys.executable, "-S", "-c", code], check=False)
            hits += os.path.exists(tmp_path / "canary")
            (tmp_path / "canary").unlink(missing_ok=True)
    assert hits == 6


def test_x2_no_source_file_unpickles_or_executes_strings():
    """Modules are imported by statements, tensors read by safetensors, numbers by JSON."""
    modules = {"pickle", "dill", "marshal", "shelve", "runpy", "importlib"}
    calls = {"eval", "exec", "compile", "__import__", "import_module", "load_module"}
    attributes = {"torch.load", "torch.jit.load", "torch.hub.load"}
    loaders = {"exec_module", "spec_from_file_location", "run_path", "run_module"}
    found = []
    for path in Path(lbq.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [(path.name, a.name) for a in node.names if a.name in modules]
            elif isinstance(node, ast.ImportFrom) and node.module in modules - {"importlib"}:
                found.append((path.name, node.module))
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                is_lazy = path == Path(lbq.__file__) and ast.unparse(node) == LAZY
                if name in calls | attributes and not is_lazy:
                    found.append((path.name, name))
                if name.rpartition(".")[2] in loaders and path != RECIPE_FILE:
                    found.append((path.name, name))
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", path
    assert found == []


def test_x2_only_words_of_the_command_line_reach_the_loader_of_recipe_files():
    """Its callers are these; each passes a path of its arguments, none one that a file holds."""
    callers = {
        (path.name, ast.unparse(node))
        for path in Path(lbq.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("load_recipe_file")
    }
    assert callers == {
        ("train_command.py", "load_recipe_file(name)"),
        ("samples.py", "load_recipe_file(path)"),
    }


def test_x2_a_recipe_in_a_file_cannot_name_a_python_file(tiny, tmp_path, capsys):
    canary = tmp_path / "canary"
    code = tmp_path / "evil.py"
    code.write_text(f"open({str(canary)!r}, 'w')\n")
    document = to_document(tiny.tiny_recipe())
    for place in ({"name": str(code)}, {"recipe": str(code)}, {"model": str(code)}):
        path = tmp_path / "recipe.json"
        path.write_text(dump_json(document | place))
        assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 1
        assert "error:" in capsys.readouterr().err
    assert not canary.exists()
