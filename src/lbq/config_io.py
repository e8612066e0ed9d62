"""Frozen dataclasses as JSON documents and back: data only, no name of any code.

A document is what ``json`` gives: objects, lists, strings, numbers, booleans and null. Reading one
back is strict: an unknown key, a missing key or a value of another kind is an error with its place.
(Written by hand: libraries that do this bring far more than these lines, and pydantic a compiled
core; see docs/decisions/0030.)
"""

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, TypeVar

from lbq.errors import RecipeError

Document = Any
"""Anything that JSON can say."""

Config = TypeVar("Config")


def to_document(value: Any) -> Document:
    """Turn a dataclass, or what its fields hold, into plain lists and dictionaries."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: to_document(getattr(value, name)) for name in names}
    if isinstance(value, (tuple, list)):
        return [to_document(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RecipeError(f"a recipe holds numbers, words and tuples of them, got {value!r}")


def from_document(kind: type[Config], document: Document) -> Config:
    """Read a dataclass of this kind back; the inverse of :func:`to_document`."""
    return _read(kind, document, kind.__name__)


def write_json(document: Document) -> str:
    """Write a document in the one form that is hashed: sorted keys, no spaces, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(document: Document) -> str:
    """Return the SHA-256 of a document, the same for equal documents on any machine."""
    return hashlib.sha256(write_json(document).encode()).hexdigest()


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


def _read(kind: Any, value: Any, place: str) -> Any:
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, place)
    if origin is Literal:
        options = typing.get_args(kind)
        return _expect(value in options, value, place, "one of " + ", ".join(map(repr, options)))
    if origin in (typing.Union, types.UnionType):
        return _read_union(typing.get_args(kind), value, place)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind), value, place)
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _expect(is_number, value, place, "a number")
        try:
            return float(value)
        except OverflowError:
            return _expect(False, value, place, "a number below 1e308")
    if kind is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return _expect(is_whole, value, place, "a whole number")
    if kind in (str, bool):
        return _expect(
            isinstance(value, kind), value, place, {str: "words", bool: "a yes/no"}[kind]
        )
    if kind is type(None):
        return _expect(value is None, value, place, "null")
    raise AssertionError(f"{place}: a recipe field of type {kind} cannot be read")


def _read_dataclass(kind: Any, value: Any, place: str) -> Any:
    _expect(isinstance(value, dict), value, place, "an object")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    if unknown := sorted(set(value) - set(fields)):
        raise RecipeError(
            f"{place} has no field {', '.join(unknown)}; it has {', '.join(sorted(fields))}"
        )
    needed = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in needed if name not in value]:
        raise RecipeError(f"{place} lacks {', '.join(missing)}, which have no default")
    read = {name: _read(hints[name], value[name], f"{place}.{name}") for name in value}
    return kind(**read)


def _read_union(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    *first, last = [kind for kind in kinds if kind is not type(None)]
    for kind in first:
        with suppress(RecipeError):
            return _read(kind, value, place)
    return _read(last, value, place)


def _read_tuple(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    _expect(isinstance(value, list), value, place, "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    _expect(len(value) == len(kinds), value, place, f"a list of {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_read(kind, item, f"{place}[{index}]") for index, (kind, item) in pairs)


def _expect(holds: bool, value: Any, place: str, expected: str) -> Any:
    if not holds:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:40]}..."
        raise RecipeError(f"{place} must be {expected}, got {shown}")
    return value
