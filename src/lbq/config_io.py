"""Reading and writing JSON: strict parsing, and typed values from JSON documents and back.

A document is the result of ``json``: objects, lists, strings, numbers, booleans and null. Parsing
rejects duplicate keys, NaN, infinities, deep nesting and large files. Reading a document as a type
rejects unknown keys, missing keys and values of other types; the error names the place. No code is
looked up by name. docs/decisions/0051 says why this is not msgspec.
"""

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from lbq.errors import FormatError
from lbq.ranges import Range

Document = Any
"""Any value that JSON can represent."""

MAX_BYTES = 64 * 2**20
"""Largest size of a JSON file."""
MAX_DEPTH = 500
"""Largest nesting of objects and lists; the reader of bundles in C++ has the same limit."""

Config = TypeVar("Config")
Problem = Literal["json", "keys", "value"]


class DocumentError(FormatError):
    """A text is not strict JSON, or a document is not of the expected type.

    Args:
        problem: "json" for the text, "keys" for unknown or missing keys, "value" for anything else.
        message: what was found, and where.
    """

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem: Problem = problem


def parse_json(data: str | bytes | memoryview, what: str) -> Document:
    """Parse strict JSON: UTF-8, every key once, no NaN, no infinity; ``what`` names the text."""
    try:
        document = json.loads(
            data if isinstance(data, str) else str(data, "utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_reject_constant,
            parse_float=_finite_float,
        )
        _check_depth(document)
    except (ValueError, RecursionError) as error:
        raise DocumentError("json", f"{what} is not strict JSON: {error}") from error
    return document


def read_json(path: str | Path, *, expected_format: str | int | None = None) -> Document:
    """Parse a file; with ``expected_format``, an object whose key "format" has this value."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DocumentError("json", f"{path} has more than {MAX_BYTES:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise DocumentError("json", f"{path} cannot be read: {error.strerror}") from error
    document = parse_json(data, str(path))
    if expected_format is not None and not isinstance(document, dict):
        raise DocumentError("value", f"{path} must be an object, got {_shown(document)}")
    if expected_format is not None and document.get("format") != expected_format:
        found = _shown(document.get("format"))
        raise DocumentError("value", f"{path} has format {found}, expected {expected_format!r}")
    return document


def dump_json(document: Document) -> str:
    """Write a document for people: indented, no NaN, a newline at the end."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def canonical_json(document: Document) -> str:
    """Write a document in its unique form for hashing: sorted keys, no spaces, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(document: Document) -> str:
    """Return the SHA-256 of a document, the same for equal documents on any machine."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def differences(
    before: Document, after: Document, place: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield ``(key, before, after)`` for every leaf that differs, keys joined by dots."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            inside = f"{place}.{key}" if place else key
            yield from differences(before.get(key), after.get(key), inside)
    elif before != after:
        yield place, before, after


def to_document(value: Any) -> Document:
    """Convert a dataclass, or the value of a field, to plain lists and dictionaries."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: to_document(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [to_document(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise DocumentError("value", f"a document holds numbers, strings and tuples, got {value!r}")


def from_document(kind: type[Config], document: Document) -> Config:
    """Read a dataclass back; the inverse of :func:`to_document`."""
    return read_value(kind, document, kind.__name__)


def read_fields(
    kinds: Mapping[str, Any],
    document: Document,
    place: str,
    *,
    required: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Read an object by the types of its keys, all of them required by default."""
    check_keys(document, kinds, place, required=required)
    return {name: read_value(kinds[name], document[name], f"{place}.{name}") for name in document}


def check_keys(
    document: Document,
    keys: Collection[str],
    place: str,
    *,
    required: Sequence[str] | None = None,
) -> None:
    """Raise unless the document is an object with these keys, all of them required by default."""
    _expect(isinstance(document, dict), document, place, "an object")
    if unknown := sorted(set(document) - set(keys)):
        known = f"it has {', '.join(sorted(keys))}"
        raise DocumentError("keys", f"{place} has no field {', '.join(unknown)[:80]}; {known}")
    needed = keys if required is None else required
    if missing := [name for name in needed if name not in document]:
        raise DocumentError("keys", f"{place} lacks {', '.join(missing)}, which have no default")


def read_value(kind: Any, value: Document, place: str) -> Any:
    """Read a value of a type.

    Args:
        kind: a dataclass, a tuple, a Literal, a union or a plain type. In ``Annotated``, a
            :class:`lbq.ranges.Range` limits a number, or the length of a tuple.
        value: the parsed value.
        place: name of the value in error messages.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _read_annotated(arguments[0], arguments[1], value, place)
    if dataclasses.is_dataclass(kind):
        kinds, required = _fields_of(kind)
        return kind(**read_fields(kinds, value, place, required=required))  # type: ignore[operator]
    if origin is Literal:
        is_option = any(type(value) is type(one) and value == one for one in arguments)
        return _expect(is_option, value, place, "one of " + ", ".join(map(repr, arguments)))
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value, place)
    if origin is tuple:
        return _read_tuple(arguments, value, place)
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _expect(is_number, value, place, "a number")
        try:
            return float(value)
        except OverflowError:
            return _expect(False, value, place, "a number below 1e308")
    if kind is Any:
        return value
    is_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return _expect(is_kind, value, place, _NAMES[kind])


_NAMES = {
    int: "a whole number",
    str: "a string",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


@functools.cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of a dataclass's fields, and the names of those without a default."""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    missing = dataclasses.MISSING
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    return {field.name: hints[field.name] for field in fields}, tuple(required)


def _read_annotated(kind: Any, allowed: Range, value: Any, place: str) -> Any:
    if typing.get_origin(kind) is tuple:
        fits = isinstance(value, list) and len(value) in allowed
        _expect(fits, value, place, f"a list of {allowed.least} to {allowed.most} items")
        return read_value(kind, value, place)
    number = read_value(kind, value, place)
    return _expect(number in allowed, number, place, allowed.describe(number))


def _read_union(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    *first, last = [kind for kind in kinds if kind is not type(None)]
    for kind in first:
        with suppress(DocumentError):
            return read_value(kind, value, place)
    return read_value(last, value, place)


def _read_tuple(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    _expect(isinstance(value, list), value, place, "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    _expect(len(value) == len(kinds), value, place, f"a list of {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(read_value(kind, item, f"{place}[{index}]") for index, (kind, item) in pairs)


def _expect(holds: bool, value: Any, place: str, expected: str) -> Any:
    if not holds:
        raise DocumentError("value", f"{place} must be {expected}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:40]}..."


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _check_depth(document: Document) -> None:
    """Raise if values are nested too deeply; Python's own limit depends on the caller's stack."""
    boxes = [document] if isinstance(document, (dict, list)) else []
    depth = 0
    while boxes:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} times")
        inside = (box.values() if isinstance(box, dict) else box for box in boxes)
        boxes = [item for items in inside for item in items if isinstance(item, (dict, list))]


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:40]} is too large")
    return number
