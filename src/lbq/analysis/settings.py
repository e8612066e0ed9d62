"""A document, such as a recipe, as lines that people read."""

from collections.abc import Iterator

from lbq.config_io import Document


def settings(document: Document, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting of a document in words, its keys joined by dots."""
    if not isinstance(document, dict):
        yield place, word(document)
        return
    for key, value in document.items():
        yield from settings(value, f"{place}.{key}" if place else str(key))


def word(value: Document) -> str:
    """Write one value: yes, no and none instead of JSON's words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(word, value))
    return str(value)
