"""JSON from strangers: read strictly, and every value checked before it is used."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lbq.export.rules import refuse, require

Check = Callable[[Any], bool]
"""Whether a value of a document is what belongs there."""


def parse(data: memoryview, what: str) -> dict[str, Any]:
    """Read a JSON object; complain about bad UTF-8, keys that come twice, NaN and infinities."""
    try:
        document = json.loads(
            str(data, "utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        refuse("json", f"the {what} is not strict JSON: {error}")
    if not isinstance(document, dict):
        refuse("value", f"the {what} is a {type(document).__name__}, not an object")
    return document


def check_keys(value: Any, keys: Iterable[str], where: str) -> dict[str, Any]:
    """Return the value as an object with exactly these keys."""
    require(isinstance(value, dict), "value", f"{where} is no object")
    expected = set(keys)
    unknown, missing = sorted(set(value) - expected), sorted(expected - set(value))
    require(not unknown, "keys", f"{where} has the unknown keys {unknown}")
    require(not missing, "keys", f"{where} lacks the keys {missing}")
    return value


def check_value(value: Any, check: Check, where: str) -> Any:
    """Return the value if the check likes it."""
    shown = repr(value)
    require(check(value), "value", f"{where} is {shown[:80]}")
    return value


def whole(low: int, high: int) -> Check:
    """Accept integers of a range; True and False are none."""
    return lambda value: type(value) is int and low <= value <= high


def flag(value: Any) -> bool:
    """Accept True and False."""
    return isinstance(value, bool)


def text(value: Any) -> bool:
    """Accept strings."""
    return isinstance(value, str)


def word(*words: str) -> Check:
    """Accept some strings."""
    return lambda value: isinstance(value, str) and value in words


def listed(check: Check, *, low: int, high: int) -> Check:
    """Accept lists of so many of something."""
    return lambda value: (
        isinstance(value, list) and low <= len(value) <= high and all(check(v) for v in value)
    )


def pair(low: int, high: int) -> Check:
    """Accept two integers of a range: one per axis."""
    return listed(whole(low, high), low=2, high=2)


def optional(check: Check) -> Check:
    """Accept null too."""
    return lambda value: value is None or check(value)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:40]} is too large")
    return number
