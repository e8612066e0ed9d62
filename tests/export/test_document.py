"""Strict JSON, and checks that say yes to what belongs there and no to the rest."""

import pytest

from lbq.export import BundleError
from lbq.export.document import (
    check_keys,
    check_value,
    flag,
    listed,
    optional,
    pair,
    parse,
    text,
    whole,
    word,
)


def test_a_document_is_read():
    assert parse(memoryview(b'{"a": [1, 2.5, null, "\xc3\xa4"]} '), "test") == {
        "a": [1, 2.5, None, "ä"]
    }


@pytest.mark.parametrize(
    "data", [b"{", b'{"a":1,"a":1}', b'{"a":NaN}', b'{"a":-1e999}', b'{"\xff":1}', b"1" * 5000]
)
def test_what_is_not_strict_json_is_refused(data):
    with pytest.raises(BundleError) as caught:
        parse(memoryview(data), "test")
    assert caught.value.rule == "json"


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (whole(0, 3), [0, 3], [-1, 4, True, 1.0, "1", None]),
        (flag, [True, False], [0, 1, None, "true"]),
        (text, ["", "a"], [1, None, []]),
        (word("a", "b"), ["a"], ["c", None, ["a"]]),
        (pair(0, 1), [[0, 1]], [[0], [0, 2], (0, 1), "01", [0, 1, 0]]),
        (optional(whole(0, 1)), [None, 1], [2, ""]),
        (listed(text, low=1, high=2), [["a"], ["a", "b"]], [[], ["a"] * 3, [1], "a"]),
    ],
)
def test_a_check_knows_its_values(check, good, bad):
    assert all(check(value) for value in good)
    for value in bad:
        with pytest.raises(BundleError) as caught:
            check_value(value, check, "it")
        assert caught.value.rule == "value"


def test_keys_are_exactly_those_known():
    assert check_keys({"a": 1}, ("a",), "it") == {"a": 1}
    with pytest.raises(BundleError, match=r"unknown keys \['b'\]"):
        check_keys({"a": 1, "b": 1}, ("a",), "it")
    with pytest.raises(BundleError, match=r"lacks the keys \['a'\]"):
        check_keys({}, ("a",), "it")
