"""The findings of an audit: verdicts in one line, with evidence."""

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["holds", "fails", "unknown", "fact"]
"""``unknown``: it could not be checked, or not all of it. ``fact``: a number, not a test."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer to one question."""

    key: str
    """Short name, as ``--fail-on`` takes it."""
    verdict: Verdict
    sentence: str
    """One line: what holds or fails, where, and by how much."""
    module: str | None = None
    """Path of the responsible module, if there is one."""
    advice: str = ""
    """What to do about it."""
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])
    """Numbers behind the sentence, as JSON data."""
