"""The promise: which names there are, what they take, and an example of each that runs."""

import doctest
import inspect
from pathlib import Path

import pytest
import torch

import lbq

LIST = Path(__file__).with_name("public_api.txt")
"""Names and signatures. A change of this file is a change of the promise: say it in CHANGELOG.md.
To write it anew: PYTHONPATH=src python tests/test_public_api.py"""


def documented(name):
    """What holds the documentation of a name: itself, or its class if it is an instance."""
    thing = getattr(lbq, name)
    is_own = inspect.isclass(thing) or inspect.isroutine(thing)
    return thing if is_own else type(thing)


def signature(name):
    """What a name takes, without its annotations: tests of types are pyright's affair."""
    thing = getattr(lbq, name)
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"{name}(*args)"
    found = inspect.signature(thing)
    bare = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    text = str(found.replace(parameters=bare, return_annotation=found.empty))
    return f"{name}{text.replace(chr(10), ' ')}"


def as_text():
    return "".join(f"{signature(name)}\n" for name in sorted(lbq.__all__))


def test_names_and_signatures_are_those_that_were_promised():
    assert as_text() == LIST.read_text()


def test_the_promise_is_short_and_sorted():
    assert len(lbq.__all__) <= 50
    assert lbq.__all__ == sorted(lbq.__all__)
    assert len(set(lbq.__all__)) == len(lbq.__all__)


@pytest.mark.parametrize("name", sorted(lbq.__all__))
def test_every_name_has_an_example_that_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    thing = documented(name)
    names = {"lbq": lbq, "torch": torch}
    [found] = doctest.DocTestFinder(recurse=False).find(thing, name, globs=names)
    assert found.examples, f"the docstring of lbq.{name} has no example"
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    captured = []
    runner = doctest.DocTestRunner(optionflags=flags)
    assert runner.run(found, out=captured.append).failed == 0, "".join(captured)


if __name__ == "__main__":
    LIST.write_text(as_text())
