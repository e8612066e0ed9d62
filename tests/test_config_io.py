import json
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbq import config_io
from lbq.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: tuple[int, int] = (3, 4)
    lengths: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    kind: Literal["a", "b"] = "a"
    rate: float | None = None
    either: int | str = 1
    flag: bool = False
    inner: Inner = field(default_factory=Inner)


outers = st.builds(
    Outer,
    name=st.text(),
    kind=st.sampled_from(["a", "b"]),
    rate=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    either=st.integers() | st.text(),
    flag=st.booleans(),
    inner=st.builds(
        Inner, lengths=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple)
    ),
)


@given(outers)
def test_a_document_is_read_back_as_it_was_written(config):
    text = config_io.write_json(config_io.to_document(config))
    assert config_io.from_document(Outer, json.loads(text)) == config


@given(outers, outers)
def test_digests_are_equal_exactly_when_the_configs_are(one, other):
    digests = [config_io.digest(config_io.to_document(each)) for each in (one, other)]
    found = list(config_io.differences(*map(config_io.to_document, (one, other))))
    assert (digests[0] == digests[1]) == (not found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nmae": "x"}, "no field nmae; it has either, flag, inner, kind, name, rate"),
        ({"kind": "c"}, "Outer.kind must be one of 'a', 'b', got 'c'"),
        ({"rate": "fast"}, "Outer.rate must be a number, got 'fast'"),
        ({"rate": True}, "Outer.rate must be a number, got True"),
        ({"inner": {"size": [1]}}, r"Outer.inner.size must be a list of 2, got \[1\]"),
        ({"inner": {"size": [1, 2.5]}}, r"Outer.inner.size\[1\] must be a whole number, got 2.5"),
        ({"inner": []}, r"Outer.inner must be an object, got \[\]"),
        ({"flag": 1}, "Outer.flag must be a yes/no, got 1"),
        ({"either": 1.5}, "Outer.either must be words, got 1.5"),
        ({"_target_": "os.system"}, "no field _target_"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(change, words):
    with pytest.raises(RecipeError, match=words):
        config_io.from_document(Outer, {"name": "x"} | change)


def test_a_missing_field_is_named():
    with pytest.raises(RecipeError, match="Outer lacks name"):
        config_io.from_document(Outer, {})


def test_differences_name_the_leaves_that_differ():
    one = Outer(name="x")
    other = replace(one, rate=0.5, inner=Inner(size=(3, 5)))
    found = config_io.differences(config_io.to_document(one), config_io.to_document(other))
    assert list(found) == [("inner.size", [3, 4], [3, 5]), ("rate", None, 0.5)]


def test_only_plain_values_can_be_written():
    with pytest.raises(RecipeError, match="numbers, words"):
        config_io.to_document(Outer(name=print))  # type: ignore
