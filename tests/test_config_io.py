import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbq import config_io
from lbq.config_io import DocumentError, parse_json, read_fields, read_json, read_value
from lbq.ranges import Range


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
    text = config_io.canonical_json(config_io.to_document(config))
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
        ({"flag": 1}, "Outer.flag must be true or false, got 1"),
        ({"either": 1.5}, "Outer.either must be a string, got 1.5"),
        ({"_target_": "os.system"}, "no field _target_"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(change, words):
    with pytest.raises(DocumentError, match=words):
        config_io.from_document(Outer, {"name": "x"} | change)


def test_a_missing_field_is_named():
    with pytest.raises(DocumentError, match="Outer lacks name"):
        config_io.from_document(Outer, {})


def test_differences_name_the_leaves_that_differ():
    one = Outer(name="x")
    other = replace(one, rate=0.5, inner=Inner(size=(3, 5)))
    found = config_io.differences(config_io.to_document(one), config_io.to_document(other))
    assert list(found) == [("inner.size", [3, 4], [3, 5]), ("rate", None, 0.5)]


def test_only_plain_values_can_be_written():
    with pytest.raises(DocumentError, match="numbers, strings"):
        config_io.to_document(Outer(name=print))  # type: ignore


def test_a_document_is_parsed():
    assert parse_json(memoryview(b'{"a": [1, 2.5, null, "\xc3\xa4"]} '), "it") == {
        "a": [1, 2.5, None, "ä"]
    }


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":-1e999}',
        b'{"\xff":1}',
        b"1" * 5000,
        b"[" * 10**5,
    ],
)
def test_what_is_not_strict_json_is_refused(data):
    with pytest.raises(DocumentError, match="it is not strict JSON") as caught:
        parse_json(data, "it")
    assert caught.value.problem == "json"


SMALL = Annotated[int, Range(0, 3)]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (SMALL, [0, 3], [-1, 4, True, 1.0, "1", None]),
        (bool, [True, False], [0, 1, None, "true"]),
        (str, ["", "a"], [1, None, []]),
        (Literal["a", "b"], ["a"], ["c", None, ["a"]]),
        (Literal[4, 8], [4], [4.0, True, "4"]),
        (tuple[SMALL, SMALL], [[0, 1]], [[0], [0, 4], (0, 1), "01", [0, 1, 0]]),
        (SMALL | None, [None, 1], [4, ""]),
        (Annotated[tuple[str, ...], Range(1, 2)], [["a"]], [[], ["a"] * 3, [1], "a"]),
        (dict, [{}], [[], None]),
    ],
)
def test_a_type_accepts_its_values_alone(kind, good, bad):
    for value in good:
        read_value(kind, value, "it")
    for value in bad:
        with pytest.raises(DocumentError, match=r"it.* must be") as caught:
            read_value(kind, value, "it")
        assert caught.value.problem == "value"


def test_fields_are_exactly_those_known():
    assert read_fields({"a": int}, {"a": 1}, "it") == {"a": 1}
    assert read_fields({"a": int, "b": int}, {"a": 1}, "it", required=["a"]) == {"a": 1}
    for document in ({"a": 1, "b": 1}, {}):
        with pytest.raises(DocumentError) as caught:
            read_fields({"a": int}, document, "it")
        assert caught.value.problem == "keys"


def test_a_file_must_have_the_expected_format(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"format": "a-1"}')
    assert read_json(path, expected_format="a-1") == {"format": "a-1"}
    with pytest.raises(DocumentError, match="has format 'a-1', expected 'a-2'"):
        read_json(path, expected_format="a-2")
    path.write_text("[]")
    with pytest.raises(DocumentError, match="must be an object"):
        read_json(path, expected_format="a-1")
    with pytest.raises(DocumentError, match="cannot be read"):
        read_json(tmp_path / "missing.json")


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_nesting_has_one_limit_that_does_not_depend_on_the_callers_stack(start, end):
    most = config_io.MAX_DEPTH
    parse_json(start * (most - 1) + "[]" + end * (most - 1), "it")
    with pytest.raises(DocumentError, match="nested"):
        parse_json(start * most + "[]" + end * most, "it")
