"""A tool that is not installed is named with the line that installs it."""

import importlib
import sys

import pytest

from lbq.errors import MissingExtraError


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        ("spikingjelly", "pip install 'spikingjelly>=2'"),
        ("neurobench", "pip install 'neurobench>=2'"),
        ("brevitas", "pip install brevitas"),
    ],
)
def test_the_adapter_of_a_missing_tool_says_how_to_install_it(tool, line, monkeypatch):
    for name in [n for n in sys.modules if n == tool or n.startswith(tool + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, f"lbq.adapters.{tool}", raising=False)
    with pytest.raises(MissingExtraError) as found:
        importlib.import_module(f"lbq.adapters.{tool}")
    assert line in str(found.value)
    assert isinstance(found.value, ImportError)


def test_the_adapter_for_snntorch_needs_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "snntorch", None)
    monkeypatch.delitem(sys.modules, "lbq.adapters.snntorch", raising=False)
    assert importlib.import_module("lbq.adapters.snntorch").Burst
