"""What a bundle must keep to be read: every rule has a name, and whoever breaks it is told it."""

from typing import NoReturn

from lbq.errors import FormatError

MAX_MANIFEST = 2**20
"""Bytes of the manifest, and of the table of tensors."""
MAX_NODES = 4096
MAX_TENSORS = 4 * MAX_NODES
MAX_NAME = 256
"""Bytes of a name in UTF-8."""
MAX_TIMESTEPS = 4096
MAX_LEVEL = 255
MAX_VALUES = 2**24
"""Values that a node may give for one sample at one instant."""
MAX_PROOF = 2**25
"""Timesteps times thresholds that the overflow proof may have to visit."""

RULES = {
    "file": "it is a regular file",
    "magic": "it begins with the eight bytes of a bundle",
    "version": "its version is one that this library reads",
    "reserved": "the reserved bytes are zero",
    "length": "the lengths in its header add up to its size",
    "digest": "its SHA-256 is that of its bytes",
    "known-digest": "its SHA-256 is the one that the caller passed",
    "manifest-size": "the manifest has at most 1 MiB",
    "table-size": "the table of tensors has at most 1 MiB and fits the payload",
    "json": "manifest and table are JSON in UTF-8: no key twice, no NaN, no infinity",
    "keys": "every object has exactly the keys of its kind",
    "value": "every value has its type and lies in its range",
    "count": "there are at most 4,096 nodes and 16,384 tensors",
    "name": "paths are unique, at most 256 bytes of UTF-8, with non-empty parts, none reserved",
    "kind": "every node is of a known kind, an integer kind in an integer network",
    "order": "every node reads earlier nodes only",
    "unread": "every node but the last is read, and the last is the only readout",
    "timesteps": "there are 1 to 4,096 timesteps, the same everywhere",
    "max-level": "a neuron has 1 to 255 levels, a signed one at most 127",
    "contiguous": "tensors are aligned, contiguous, and fill the payload",
    "tensors": "every tensor is used exactly once, at the offset given by the manifest",
    "dtype": "tensors have the types of their roles",
    "shape": "shapes are positive and fit what the node reads",
    "size": "no node has more than 2**24 outputs, no proof visits more than 2**25 values",
    "signal": "a node gets levels or currents, with or without time, as its kind requires",
    "max-input": "the largest possible input of a synapse does not exceed its `max_input`",
    "finite": "real numbers are finite",
    "bits": "integer weights lie within their bits",
    "thresholds": "thresholds are positive and rise (those of integers never fall)",
    "decay": "a decay is 0 to 1 in integers, 0 to 2 in real numbers",
    "reset": "the amount a reset subtracts is not negative, and the reset settings are consistent",
}
"""Every rule that :func:`lbq.load` checks, by name. The proven bounds are checked as well: where
the file tells a lie about them, that is a :class:`lbq.errors.BoundError`."""


class BundleError(FormatError):
    """A file is not a bundle that keeps the rules.

    Args:
        rule: name of the rule, one of ``RULES``.
        message: what was found, and where.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{message} (rule {rule!r}: {RULES[rule]})")
        self.rule = rule
        self.message = message


def refuse(rule: str, message: str) -> NoReturn:
    """Say no."""
    raise BundleError(rule, message)


def require(is_kept: bool, rule: str, message: str) -> None:
    """Say no unless the rule is kept."""
    if not is_kept:
        refuse(rule, message)
